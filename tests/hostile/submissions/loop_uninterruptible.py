# attack: waits for a child of vfork that waits for ever: a sleep that no signal but SIGKILL ends
# state: timeout
# user: error: there /tmp is not its own
import os

os.mkfifo("/tmp/nobody_writes")
os.posix_spawn("/bin/true", ["true"], {}, file_actions=[(os.POSIX_SPAWN_OPEN, 9, "/tmp/nobody_writes", os.O_RDONLY, 0)])
