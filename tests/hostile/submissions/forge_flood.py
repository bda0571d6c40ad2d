# attack: fills the pipe of evidence without end
# state: too much data
import os

while True:
    os.write(3, b"E" * (1 << 16))
