package replicate

import (
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/boursemq/bourse"
)

// Goal: a Config that cannot work, or that would open a port to strangers, is refused by
// name; and the library is told every limit that it does not set itself.

func good(t *testing.T) Config {
	return Config{
		NodeID:           2,
		RaftAddress:      "127.0.0.1:7002",
		Members:          map[uint64]string{1: "127.0.0.1:7001", 2: "127.0.0.1:7002", 3: "localhost:7003"},
		Dir:              t.TempDir(),
		InsecureLoopback: true,
	}
}

func TestConfigRefused(t *testing.T) {
	if _, err := good(t).complete(); err != nil {
		t.Fatalf("a good Config: %v", err)
	}
	pem := filepath.Join(t.TempDir(), "x.pem")
	if err := os.WriteFile(pem, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	members := func(change func(map[uint64]string)) func(*Config) {
		return func(c *Config) { change(c.Members) }
	}
	for field, change := range map[string]func(*Config){
		"NodeID":                   func(c *Config) { c.NodeID = 0 },
		"Members, none":            func(c *Config) { c.Members = nil },
		"Members, not us":          func(c *Config) { c.NodeID = 9 },
		"Members, zero":            members(func(m map[uint64]string) { m[0] = "127.0.0.1:7009" }),
		"Members, twice":           members(func(m map[uint64]string) { m[3] = m[1] }),
		"Members, no port":         members(func(m map[uint64]string) { m[3] = "127.0.0.1" }),
		"Members, bad port":        members(func(m map[uint64]string) { m[3] = "127.0.0.1:0" }),
		"Members, no host":         members(func(m map[uint64]string) { m[3] = ":7003" }),
		"Members, too many":        members(func(m map[uint64]string) { m[4], m[5], m[6], m[7], m[8] = "a:1", "b:1", "c:1", "d:1", "e:1" }),
		"RaftAddress":              func(c *Config) { c.RaftAddress = "127.0.0.1:7001" },
		"Dir":                      func(c *Config) { c.Dir = "" },
		"RTT":                      func(c *Config) { c.RTT = time.Millisecond },
		"RTT, slow":                func(c *Config) { c.RTT = time.Minute },
		"RTT, odd":                 func(c *Config) { c.RTT = 20*time.Millisecond + 1 },
		"SnapshotBytes":            func(c *Config) { c.SnapshotBytes = 1 },
		"InsecureLoopback":         members(func(m map[uint64]string) { m[3] = "10.0.0.3:7003" }),
		"InsecureLoopback, a name": members(func(m map[uint64]string) { m[3] = "example.org:7003" }),
		"CAFile":                   func(c *Config) { c.InsecureLoopback = false },
		"CAFile, missing":          func(c *Config) { c.InsecureLoopback, c.CAFile = false, pem+"x" },
		"CertFile":                 func(c *Config) { c.InsecureLoopback, c.CAFile = false, pem },
		"KeyFile":                  func(c *Config) { c.InsecureLoopback, c.CAFile, c.CertFile = false, pem, pem },
		"KeyFile, not wanted":      func(c *Config) { c.KeyFile = pem },
	} {
		c := good(t)
		change(&c)
		_, err := Start(c)
		var inv *bourse.InvalidError
		if !errors.As(err, &inv) || !errors.Is(err, bourse.ErrInvalid) {
			t.Errorf("%s: %v", field, err)
			continue
		}
		if want, _, _ := strings.Cut(field, ","); inv.Field != "Config."+want {
			t.Errorf("%s: the error names %s: %v", field, inv.Field, err)
		}
	}
}

func TestLimitsAreSet(t *testing.T) {
	c, err := good(t).complete()
	if err != nil {
		t.Fatal(err)
	}
	r := c.replica(5)
	if !r.CheckQuorum || !r.PreVote || !r.OrderedConfigChange || r.Quiesce || r.SnapshotEntries != 0 {
		t.Errorf("Raft safety: %+v", r)
	}
	if r.ShardID != 5 || r.ReplicaID != 2 || r.ElectionRTT != 10 || r.HeartbeatRTT != 1 {
		t.Errorf("identity and clocks: %+v", r)
	}
	if r.MaxInMemLogSize != 64<<20 || MaxCommandBytes+flightBytes >= r.MaxInMemLogSize {
		t.Errorf("MaxInMemLogSize is %d", r.MaxInMemLogSize)
	}
	if r.EntryCompressionType != 0 || r.CompactionOverhead == 0 {
		t.Errorf("log: %+v", r)
	}
	h := c.nodeHost()
	if h.MaxSendQueueSize != 64<<20 || h.MaxReceiveQueueSize != 64<<20 {
		t.Errorf("queues: %d, %d", h.MaxSendQueueSize, h.MaxReceiveQueueSize)
	}
	if h.DeploymentID < 2 || h.RTTMillisecond != 50 || h.MutualTLS || h.NotifyCommit || h.EnableMetrics || h.DefaultNodeRegistryEnabled {
		t.Errorf("host: %+v", h)
	}
	if l := h.Expert.LogDB; l.Shards != 1 || l.KVWriteBufferSize > 4<<20 || h.Expert.Engine.ExecShards%l.Shards != 0 {
		t.Errorf("LogDB: %+v, engine %+v", l, h.Expert.Engine)
	}
	bridge(c.Logger)
	if err := h.Validate(); err != nil {
		t.Error(err)
	}
	if err := r.Validate(); err != nil {
		t.Error(err)
	}
	c.InsecureLoopback, c.CAFile, c.CertFile, c.KeyFile = false, "ca", "cert", "key"
	if h := c.nodeHost(); !h.MutualTLS || h.CAFile != "ca" || h.CertFile != "cert" || h.KeyFile != "key" {
		t.Errorf("TLS: %+v", h)
	}
	other := c
	other.Cluster = "other"
	if other.nodeHost().DeploymentID == c.nodeHost().DeploymentID {
		t.Error("clusters of different names are the same deployment")
	}
}

func TestDirectory(t *testing.T) {
	c := newCluster(t, 30*time.Millisecond)
	cfg := c.cfgs[0]
	n, err := Start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Start(cfg); !errors.Is(err, bourse.ErrDirInUse) {
		t.Errorf("a second start in the same directory: %v", err)
	}
	for range 2 {
		if err := n.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	}
	busy, err := net.Listen("tcp4", cfg.RaftAddress)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Start(cfg); err == nil || errors.Is(err, bourse.ErrStorage) {
		t.Errorf("start on a busy port: %v", err)
	}
	_ = busy.Close()
	moved := cfg
	moved.RaftAddress = c.cfgs[1].RaftAddress
	moved.Members = map[uint64]string{1: moved.RaftAddress, 2: cfg.RaftAddress}
	if _, err := Start(moved); !errors.Is(err, bourse.ErrForeignDir) {
		t.Errorf("start under another address: %v", err)
	}
	if err := os.Mkdir(filepath.Join(cfg.Dir, "another-host"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := Start(cfg); !errors.Is(err, bourse.ErrForeignDir) {
		t.Errorf("start beside another host's directory: %v", err)
	}
}

// The library is quiet unless asked, and its lines arrive at the Logger.
func TestLogger(t *testing.T) {
	var text strings.Builder
	log := func(level slog.Level) {
		text.Reset()
		bridgeTo.Store(slog.New(slog.NewTextHandler(&text, &slog.HandlerOptions{Level: level})))
		bridged("raft").Warningf("became %s", "leader")
		bridged("raft").Errorf("failed %d", 7)
	}
	before := bridgeTo.Load()
	defer bridgeTo.Store(before)
	log(slog.LevelInfo)
	if got := text.String(); strings.Contains(got, "leader") || !strings.Contains(got, "failed 7") {
		t.Errorf("at Info: %q", got)
	}
	log(slog.LevelDebug)
	if got := text.String(); !strings.Contains(got, "became leader") {
		t.Errorf("at Debug: %q", got)
	}
	defer func() {
		if recover() == nil {
			t.Error("Panicf returned")
		}
	}()
	bridged("raft").Panicf("stop")
}
