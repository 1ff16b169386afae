import osae

world = osae.SparseWorld(width=40, units=50, active=3, samples=50_000)  # synthetic data, known atoms
x, truth = world.draw("train").x, world.dictionary()
task = osae.Task(width=40, units=50, k=3, samples=500_000)
first, second = (osae.fit(osae.world_recipe("osae", task), x, seed=seed).decoder for seed in (0, 1))
plain = osae.fit(osae.world_recipe("topk", task), x, seed=0).decoder

print(f"chance:            stability {osae.chance_level(50, 50, 40).stability:.3f}")
pairs = {"two seeds": (first, second), "ordered and truth": (first, truth), "plain and truth": (plain, truth)}
for name, (a, b) in pairs.items():
    print(f"{name + ':':18} stability {osae.stability(a, b):.3f}, orderedness {osae.orderedness(a, b):.3f}")
