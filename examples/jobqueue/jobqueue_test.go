package main

// Goal: a run that is killed again and again, while it queues and while it works, finds the same as
// one that is left alone, and a run after that starts afresh. Method: the test binary runs itself as
// the program, over a small folder with files that do not parse, and the totals are compared.

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"
)

const childEnv = "JOBQUEUE_TEST_CHILD" // folder, directory, jobs done and jobs queued before the kill

func TestMain(m *testing.M) {
	words := strings.Split(os.Getenv(childEnv), "|")
	if len(words) != 4 {
		os.Exit(m.Run())
	}
	done, _ := strconv.Atoi(words[2])
	queued, _ := strconv.Atoi(words[3])
	opts := options{
		folder: words[0], dir: words[1], urgent: "urgent_*.go", workers: 2, chunk: 7, killAfter: done, killQueued: queued,
	}
	if err := run(context.Background(), opts, os.Stdout); err != nil {
		fmt.Println("error:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// runChild runs the program and returns what it printed, and whether it was killed.
func runChild(t *testing.T, folder, dir string, done, queued int) (out string, killed bool) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s|%s|%d|%d", childEnv, folder, dir, done, queued))
	b, err := cmd.CombinedOutput()
	if err == nil {
		return string(b), false
	}
	if code := cmd.ProcessState.ExitCode(); code != -1 && runtime.GOOS != "windows" || strings.Contains(string(b), "error:") {
		t.Fatalf("the program failed: %v\n%s", err, b)
	}
	return string(b), true
}

// totals is the part of the output that must not depend on how often the program was killed.
func totals(t *testing.T, out string) string {
	t.Helper()
	// Without what the last failure was: it may have been a kill.
	lines := regexp.MustCompile(`(?m)^(failed .*?:|(total|sha256) .*$)`).FindAllString(out, -1)
	if len(lines) < 3 {
		t.Fatalf("no totals in\n%s", out)
	}
	return strings.Join(lines, "\n")
}

// makeFolder writes files of which some are urgent and some do not parse.
func makeFolder(t *testing.T) string {
	folder := t.TempDir()
	for i := range 90 {
		name := filepath.Join(folder, strconv.Itoa(i%4), fmt.Sprintf("f%02d.go", i))
		text := fmt.Sprintf("package p\n\nfunc f%d() {}\n%s", i, strings.Repeat("// more\n", i))
		switch {
		case i%30 == 7:
			text = "package p\n\nfunc {"
		case i%10 == 3:
			name = filepath.Join(folder, "z", fmt.Sprintf("urgent_%d.go", i))
		}
		if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return folder
}

func TestKilledRunsFindTheSame(t *testing.T) {
	folder := makeFolder(t)
	out, _ := runChild(t, folder, filepath.Join(t.TempDir(), "data"), 0, 0)
	want := totals(t, out)
	for _, part := range []string{
		"total    87 files parsed, 3 failed; 87 functions, ",
		"failed   3/f07.go: died of delivery_limit after 4 failures: 3:6: expected 'IDENT', found '{'",
		"queue    90 jobs, 99 deliveries: 9 again",
		"urgent   9 files match urgent_*.go; they were results 1 to ",
	} {
		if !strings.Contains(out, part) {
			t.Errorf("%q is not in\n%s", part, out)
		}
	}

	dir := filepath.Join(t.TempDir(), "data")
	killed, kills := true, 0
	for _, at := range []struct{ done, queued int }{{0, 20}, {0, 20}, {0, 7}, {20, 0}, {1, 0}, {20, 0}, {0, 0}} {
		if out, killed = runChild(t, folder, dir, at.done, at.queued); !killed {
			break // a kill that comes late, on a busy machine, leaves less to the next run
		}
		if kills++; kills > 1 && !strings.Contains(out, "resuming: ") {
			t.Errorf("run %d does not say that it resumes:\n%s", kills, out)
		}
	}
	if kills < 4 {
		t.Fatalf("killed only %d times", kills)
	}
	if got := totals(t, out); killed || got != want {
		t.Errorf("after kills:\n%s\nwithout:\n%s", got, want)
	}
	if !strings.Contains(out, "queue    111 jobs, ") { // each kill while queueing queued one chunk of 7 again
		t.Errorf("not 111 jobs:\n%s", out)
	}

	again, _ := runChild(t, folder, dir, 0, 0)
	if strings.Contains(again, "resuming") || totals(t, again) != want {
		t.Errorf("the run after that did not start afresh:\n%s", again)
	}
}
