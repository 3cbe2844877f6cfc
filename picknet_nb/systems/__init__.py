"The compared captioners: importing this package registers each of them, with its preset."
from . import (  # noqa: F401
    ta, p_rnn, s2vt, lstm_e, ruc_uva, hrne, ba, ms_rnn, aalto, densecap)
