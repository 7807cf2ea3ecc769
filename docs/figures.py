"""Make the pictures of the README and of any-start.md from finished runs.

fathom run --trials 3 --out runs/plumb
fathom run --trials 3 --tuner fathom --out runs/fathom
fathom run --trials 3 --tuner fixed --out runs/fedavg
python docs/figures.py runs/plumb runs/fathom runs/fedavg docs/glyphs.png

fathom run --rounds 60 --every 1 --lr 0.0001 --batch 256 --out "lr 0.0001, batches of 256"
fathom run --rounds 60 --every 1 --lr 0.01 --batch 4 --epochs 4 --out "lr 0.01, batches of 4, four epochs"
fathom run --rounds 60 --every 1 --lr 1 --batch 20 --out "lr 1, batches of 20"
python docs/figures.py lr*of\\ 256 lr*epochs lr*of\\ 20 docs/any-start.png
"""

import sys
from pathlib import Path

from fathom.report.curves import draw

*runs, picture = map(Path, sys.argv[1:])
print(draw(runs, picture))
