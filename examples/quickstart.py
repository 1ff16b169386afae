import osae

world = osae.SparseWorld(width=40, units=50, active=3, samples=50_000)  # synthetic data, known atoms
x, truth = world.draw("train").x, world.dictionary()

task = osae.Task(width=40, units=50, k=3, samples=500_000)
first, second = (osae.fit(osae.world_recipe("osae", task), x, seed=seed) for seed in (0, 1))
plain = osae.fit(osae.world_recipe("topk", task), x, seed=0)
print(first)

print(f"two seeds:       stability {osae.stability(first.decoder, second.decoder):.3f}")
print(f"                 orderedness {osae.orderedness(first.decoder, second.decoder):.3f}")
print(f"ordered / truth: orderedness {osae.orderedness(first.decoder, truth):.3f}")
print(f"plain / truth:   orderedness {osae.orderedness(plain.decoder, truth):.3f}")
print(f"chance:          stability {osae.chance_level(50, 50, 40).stability:.3f}")
