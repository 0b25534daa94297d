"""`python -m numpy_gpt` is `numpy-gpt`."""

import sys

from numpy_gpt.cli import main

sys.exit(main())
