# attack: prints without end, to both streams
# state: timeout
import sys

while True:
    print("hostile " * 1000)
    print("hostile " * 1000, file=sys.stderr)
