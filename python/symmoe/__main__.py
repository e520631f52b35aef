"""`python -m symmoe`: the same as the command `symmoe`."""

import sys

from .cli import main

sys.exit(main())
