# attack: sleeps for an hour, with every signal blocked
# state: timeout
import signal
import time

signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
time.sleep(3600)
