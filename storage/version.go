package storage

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
)

// checkVersion refuses a file that starts with a whole header of a segment in another version. Without it such a file would look as if
// it held no records, and would be written over.
func (l *Log) checkVersion(number uint32, b []byte) error {
	le := binary.LittleEndian
	if len(b) < headerBytes || string(b[:8]) != segmentMagic || crc32.Checksum(b[:60], castagnoli) != le.Uint32(b[60:]) {
		return nil
	}
	if v := le.Uint32(b[8:]); v != formatVersion {
		return fmt.Errorf("%w: %s has format %d, this release reads %d", ErrForeign, l.segmentName(number), v, formatVersion)
	}
	return nil
}
