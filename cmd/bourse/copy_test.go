package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestBackupAndRestore(t *testing.T) {
	dir, to := filled(t), t.TempDir()
	before := files(t, dir)
	status, _, errs := bourseOn("backup", dir, to)
	require.Equal(t, well, status, errs)
	require.Equal(t, before, files(t, dir), "it only reads")
	file := filepath.Join(to, "bourse-backup.tar")
	status, _, errs = bourseOn("backup", dir, file)
	require.Equal(t, unknown, status)
	require.Contains(t, errs, "is there already")

	again := filepath.Join(to, "again")
	status, _, errs = bourseOn("restore", file, again)
	require.Equal(t, well, status, errs)
	_, want, _ := bourseOn("dump", dir)
	status, got, errs := bourseOn("dump", again)
	require.Equal(t, well, status, errs)
	require.Equal(t, want, got)
	status, _, errs = bourseOn("restore", file, again)
	require.Equal(t, unknown, status, "never over a log")
	require.Contains(t, errs, "is to be empty")

	b, err := os.ReadFile(file)
	require.NoError(t, err)
	b[len(b)/2] ^= 1
	require.NoError(t, os.WriteFile(file, b, 0o600))
	status, _, errs = bourseOn("restore", file, filepath.Join(to, "damaged"))
	require.Equal(t, damaged, status, errs)
	status, _, _ = bourseOn("check", filepath.Join(to, "damaged"))
	require.Equal(t, unknown, status, "half a restore is no log")
	for _, wrong := range [][]string{{"backup", dir}, {"restore"}, {"restore", filepath.Join(to, "nothing"), dir}, {"backup", to, "x"}} {
		status, _, errs = bourseOn(wrong...)
		require.Equal(t, unknown, status, wrong)
		require.NotEmpty(t, errs)
	}
}
