# attack: loops for ever
# state: timeout
def totals(batches):
    while True:
        pass
