package bench

// Goal: the floor does what it is measured for. Method: after runs of a known number of messages the file is read back:
// each publish and each ack must be there once, whole, and nothing of a run overwritten; and a run that is too long for
// the file ends where the file does.

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"os"
	"testing"
	"time"
)

const floorMessages = 5000

func TestFloorStores(t *testing.T) {
	b := openForTest(t, Config{Messages: floorMessages})
	for _, s := range Scenarios() {
		var acks int
		switch s.Name {
		case "W1/PublishAsync":
		case "W2/Next", "W3/Next":
			acks = 1
		default:
			continue
		}
		t.Run(s.Name, func(t *testing.T) {
			b.floor.log.mu.Lock()
			before := b.floor.log.seq
			b.floor.log.mu.Unlock()
			sample, err := b.Run(s, Floor)
			if err != nil {
				t.Fatal(err)
			}
			if sample.Messages != floorMessages {
				t.Fatalf("%d messages, want %d", sample.Messages, floorMessages)
			}
			published, acked := make(map[uint64]int), make(map[uint64]int)
			// Acks are not waited for: they are there with the next record that is.
			if err := <-b.floor.publish(nil, b.body); err != nil {
				t.Fatal(err)
			}
			readFloor(t, b, published, acked)
			for seq := before + 1; seq <= before+floorMessages; seq++ {
				if published[seq] != 1 || acked[seq] != acks {
					t.Fatalf("message %d was stored %d times and acked %d times, want 1 and %d", seq, published[seq], acked[seq], acks)
				}
			}
		})
	}
}

// readFloor counts the records of the last run.
func readFloor(t *testing.T, b *Bench, published, acked map[uint64]int) {
	t.Helper()
	content, err := os.ReadFile(b.floor.log.file.Name())
	if err != nil {
		t.Fatal(err)
	}
	b.floor.log.mu.Lock()
	content = content[:b.floor.log.at]
	b.floor.log.mu.Unlock()
	for len(content) > 0 {
		size, length := b.floor.sizes.publish, int(binary.LittleEndian.Uint32(content[4:]))
		seq := binary.LittleEndian.Uint64(content[8:])
		switch {
		case length == len(b.body):
			published[seq]++
			if !bytes.Equal(content[logHeader:logHeader+length], b.body) {
				t.Fatalf("message %d has another body", seq)
			}
		case seq == 0: // the end of a queue
			size = logHeader
		default:
			size = b.floor.sizes.ack
			acked[seq]++
		}
		if crc32.Checksum(content[4:size], castagnoli) != binary.LittleEndian.Uint32(content) {
			t.Fatalf("the record of message %d is damaged", seq)
		}
		content = content[size:]
	}
}

func TestFloorEndsWithItsFile(t *testing.T) {
	b := openForTest(t, Config{Messages: floorMessages})
	for _, s := range Scenarios() {
		if s.Latency || s.Memory {
			continue // they are slow, or have no file
		}
		t.Run(s.Name, func(t *testing.T) {
			sample, err := b.run(s, Floor, limit{until: time.Now().Add(time.Minute)})
			if err != nil {
				t.Fatal(err)
			}
			if got, most := int64(sample.Messages*b.floor.sizes.publish), b.floor.log.size; got > most {
				t.Errorf("%d bytes in a file of %d", got, most)
			}
		})
	}
}

func openForTest(t *testing.T, cfg Config) *Bench {
	t.Helper()
	cfg.Dir = t.TempDir()
	b, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}
