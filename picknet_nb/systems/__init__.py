"""The compared captioners: to import this package registers every one of them, with its preset."""
from . import ta, ms_rnn, hrne, s2vt, lstm_e
