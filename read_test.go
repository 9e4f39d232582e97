package bourse

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
)

// Rooms are cut from one slab; none may reach into another, also when it grows.
func TestRoom(t *testing.T) {
	var in space
	var rooms [][]byte
	for i := range 1000 {
		n := i * 37 % (slabMost + 100)
		b := in.room(n)
		require.Empty(t, b)
		require.GreaterOrEqual(t, cap(b), n)
		rooms = append(rooms, append(b, bytes.Repeat([]byte{byte(i)}, n)...))
	}
	for i, b := range rooms {
		_ = append(b, 0xFF)
		n := i * 37 % (slabMost + 100)
		require.True(t, bytes.Equal(bytes.Repeat([]byte{byte(i)}, n), b), "room %d", i)
	}
}
