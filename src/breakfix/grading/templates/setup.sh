#!/usr/bin/env bash
# Gradescope runs this once, when it builds the image: Python, and breakfix in an environment of its own.
set -euo pipefail
root=${AUTOGRADER_ROOT:-/autograder}

find_python() {
  for version in 3.13 3.12 3.11; do
    if command -v "python$version" > /dev/null && "python$version" -c 'import venv, ensurepip' 2> /dev/null; then
      echo "python$version"
      return
    fi
  done
  return 1
}

if ! find_python > /dev/null; then
  apt-get update
  for version in 3.12 3.11; do  # whichever this release of the image's system has
    apt-get install -y --no-install-recommends "python$version" "python$version-venv" && break
  done
fi
python=$(find_python) || { echo "breakfix needs Python 3.11, 3.12 or 3.13" >&2; exit 1; }

"$python" -m venv "$root/venv"
# Without a GPU the CPU wheels do, and they are a tenth of the size.
"$root/venv/bin/python" -m pip install --quiet --extra-index-url https://download.pytorch.org/whl/cpu \
  --find-links "$root/source/wheels" @requirement@

# A submission may read Python's folders. So the package goes to a folder of its own, laid out as in a checkout: there
# the solutions lie beside what a submission may read, and not in it.
package=$("$root/venv/bin/python" -c 'import breakfix; print(breakfix.__path__[0])')
if [ -d "$package/content" ]; then
  mkdir -p "$root/breakfix/src"
  mv "$package" "$root/breakfix/src/breakfix"
  mv "$root/breakfix/src/breakfix/content/"* "$root/breakfix/"
  rmdir "$root/breakfix/src/breakfix/content"
  echo "$root/breakfix/src" > "$(dirname "$package")/breakfix.pth"
fi
"$root/venv/bin/breakfix" --version
