# attack: takes memory without end
# state: out of memory
def totals(batches):
    kept = []
    while True:
        kept.append(b"1" * (64 << 20))
