# attack: becomes another program, which ends with status 0
import os

os.execv("/bin/true", ["true"])
