# attack: ends the process with status 0 before anything is measured
import os

os._exit(0)
