"The compared captioners and a transformer: importing this package registers all, with presets."
from . import (  # noqa: F401
    ta, p_rnn, s2vt, lstm_e, ruc_uva, hrne, ba, ms_rnn, aalto, densecap, transformer)
