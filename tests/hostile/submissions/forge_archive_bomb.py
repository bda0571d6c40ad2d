# attack: sends a zip archive that unpacks to a gigabyte, where the frame should be
import io
import os
import zipfile

packed = io.BytesIO()
with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("even.totals.npy", "w") as file:
    for _ in range(64):  # 64 MiB are enough to show it; it is never unpacked
        file.write(bytes(1 << 20))
data = b"E" + packed.getvalue()
while data:
    data = data[os.write(3, data) :]
os._exit(0)
