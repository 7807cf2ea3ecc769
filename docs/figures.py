"""Make the picture of the README from finished runs.

fathom run --trials 3 --out runs/plumb
fathom run --trials 3 --tuner fathom --out runs/fathom
fathom run --trials 3 --tuner fixed --out runs/fedavg
python docs/figures.py runs/plumb runs/fathom runs/fedavg docs/glyphs.png
"""

import sys
from pathlib import Path

from fathom.report.curves import draw

*runs, picture = map(Path, sys.argv[1:])
print(draw(runs, picture))
