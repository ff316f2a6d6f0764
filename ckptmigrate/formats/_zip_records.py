r"""The records of a zip file, as reader and writer share them.

    LOCAL      PK\3\4  version │ flags │ method │ time │ date │ CRC │ packed │ size │ name length │ extra length
    DESCRIPTOR PK\7\8  CRC │ packed │ size                behind the data, where STREAMED says that the header's numbers are 0
    CENTRAL    PK\1\2  made by │ version │ flags │ method │ time │ date │ CRC │ packed │ size │ three lengths │ disk │ attributes │ offset
    END64      PK\6\6  size of this │ made by │ version │ disks │ entries here, in all │ bytes, offset of the directory
    LOCATOR64  PK\6\7  disk │ offset of the record above │ disks
    END        PK\5\6  disks │ entries here, in all │ bytes, offset of the directory │ comment length

Source: APPNOTE 6.3.10, section 4.3.
"""

from __future__ import annotations

import struct

LOCAL, DESCRIPTOR, CENTRAL, END64, LOCATOR64, END = (
    b"PK\3\4", b"PK\7\x08", b"PK\1\2", b"PK\6\6", b"PK\6\7", b"PK\5\6",
)  # fmt: skip
LOCAL_RECORD = struct.Struct("<4sHHHHHIIIHH")
CENTRAL_RECORD = struct.Struct("<4sHHHHHHIIIHHHHHII")
END64_RECORD = struct.Struct("<4sQHHIIQQQQ")
LOCATOR64_RECORD = struct.Struct("<4sIQI")
END_RECORD = struct.Struct("<4sHHHHIIH")

ENCRYPTED = 1 << 0 | 1 << 6 | 1 << 13  # flags: traditional, strong, masked headers
STREAMED, UTF8 = 1 << 3, 1 << 11
ONES16, ONES32 = 0xFFFF, 0xFFFFFFFF  # of a short field: the zip64 record has the number
