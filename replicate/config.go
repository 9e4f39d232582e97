package replicate

import (
	"fmt"
	"hash/fnv"
	"log/slog"
	"maps"
	"net"
	"os"
	"strconv"
	"time"

	"github.com/lni/dragonboat/v4/config"

	"github.com/boursemq/bourse"
)

// MaxMembers is the largest number of members of a cluster of this first form, in which
// every member holds every shard.
const MaxMembers = 7

// Config says who this node is and with whom it forms a cluster. Start copies it, fills
// in the defaults and refuses what cannot work with a *bourse.InvalidError that names the
// field.
type Config struct {
	// NodeID is this node's key in Members. It belongs to Dir for ever: a node whose
	// directory was lost must not come back under its old id.
	NodeID uint64
	// RaftAddress is host:port where this node listens for the others. It must equal
	// Members[NodeID] and cannot change.
	RaftAddress string
	// Members are the addresses of all nodes, this one included, by NodeID. Every node must be
	// given the same map, now and at every restart.
	Members map[uint64]string
	// Cluster names the cluster. Nodes ignore nodes of clusters with another name.
	// Default "bourse". It cannot change.
	Cluster string

	// Dir holds the node's data. It is bound to NodeID, RaftAddress, Cluster and the
	// name of the host.
	Dir string

	// RTT is the unit of Raft's clocks: a heartbeat each, an election after 10 to 20
	// without one. Default 50 ms; 10 ms to 1 s.
	RTT time.Duration
	// SnapshotBytes of commands applied to a shard make it take a snapshot. Default
	// 64 MiB.
	SnapshotBytes int64

	// CAFile, CertFile and KeyFile are PEM files for mutual TLS between the nodes. Whoever
	// holds a certificate of this CA may speak for any node, so use a CA of the
	// cluster's own.
	CAFile, CertFile, KeyFile string
	// InsecureLoopback allows a cluster without TLS if all Members have loopback
	// addresses: for tests and for trying things out.
	InsecureLoopback bool

	// Logger gets what the node has to say. nil: nothing. The Raft library has one logger
	// for the whole process, so its lines go to the Logger of the node that was started
	// last.
	Logger *slog.Logger
}

// What the Raft library is told, asserted by a test. Its own defaults are unlimited
// queues, no check of the quorum, no vote before the vote, and 10 GB of files.
const (
	electionRTT     = 10
	heartbeatRTT    = 1
	maxInMemLog     = 64 << 20 // bytes of a shard's log that is not applied yet
	maxQueue        = 64 << 20 // bytes of a queue to, or from, another node
	compactOverhead = 1024     // log entries kept behind a snapshot, for slow followers
)

func invalid(field, format string, args ...any) error {
	return &bourse.InvalidError{Field: "Config." + field, Reason: fmt.Sprintf(format, args...)}
}

// complete returns a checked copy with the defaults filled in.
func (c Config) complete() (Config, error) {
	c.Members = maps.Clone(c.Members)
	if c.Cluster == "" {
		c.Cluster = "bourse"
	}
	if c.RTT == 0 {
		c.RTT = 50 * time.Millisecond
	}
	if c.SnapshotBytes == 0 {
		c.SnapshotBytes = 64 << 20
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	switch {
	case c.NodeID == 0:
		return c, invalid("NodeID", "must not be 0")
	case len(c.Members) == 0:
		return c, invalid("Members", "is empty")
	case len(c.Members) > MaxMembers:
		return c, invalid("Members", "has %d members, the limit is %d", len(c.Members), MaxMembers)
	case c.Dir == "":
		return c, invalid("Dir", "is empty")
	case c.RTT < 10*time.Millisecond || c.RTT > time.Second:
		return c, invalid("RTT", "%v is not between 10ms and 1s", c.RTT)
	case c.RTT%time.Millisecond != 0:
		return c, invalid("RTT", "%v is not in whole milliseconds", c.RTT)
	case c.SnapshotBytes < 1<<20:
		return c, invalid("SnapshotBytes", "%d is less than 1 MiB", c.SnapshotBytes)
	case c.Members[c.NodeID] == "":
		return c, invalid("Members", "has no member %d, which is NodeID", c.NodeID)
	case c.Members[c.NodeID] != c.RaftAddress:
		return c, invalid("RaftAddress", "%q is not the address of member %d, %q", c.RaftAddress, c.NodeID, c.Members[c.NodeID])
	}
	taken := map[string]uint64{}
	for id, addr := range c.Members {
		if id == 0 {
			return c, invalid("Members", "has a member 0")
		}
		if other, ok := taken[addr]; ok {
			return c, invalid("Members", "%d and %d have the same address %q", min(id, other), max(id, other), addr)
		}
		taken[addr] = id
		if err := checkAddress(addr); err != nil {
			return c, invalid("Members", "address %q of member %d: %v", addr, id, err)
		}
	}
	return c, c.checkTLS()
}

func checkAddress(addr string) error {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return err
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return fmt.Errorf("port %q is not between 1 and 65535", port)
	}
	if host == "" {
		return fmt.Errorf("no host")
	}
	if !config.IsValidAddress(addr) {
		return fmt.Errorf("neither a name nor an IPv4 address, and a port")
	}
	return nil
}

// checkTLS sees to it that no Raft port is open to strangers: whoever reaches one without
// mutual TLS can stop the process, and read and write the log.
func (c Config) checkTLS() error {
	files := [...]struct{ field, path string }{{"CAFile", c.CAFile}, {"CertFile", c.CertFile}, {"KeyFile", c.KeyFile}}
	if c.InsecureLoopback {
		for _, f := range files {
			if f.path != "" {
				return invalid(f.field, "is set, and InsecureLoopback says no TLS")
			}
		}
		for id, addr := range c.Members {
			if host, _, _ := net.SplitHostPort(addr); !loopback(host) {
				return invalid("InsecureLoopback", "member %d has %q, which is no loopback address", id, addr)
			}
		}
		return nil
	}
	for _, f := range files {
		if f.path == "" {
			return invalid(f.field, "is empty; nodes talk mutual TLS unless InsecureLoopback is set")
		}
		if _, err := os.Stat(f.path); err != nil {
			return invalid(f.field, "%v", err)
		}
	}
	return nil
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// secure reports whether the nodes use TLS.
func (c Config) secure() bool { return !c.InsecureLoopback }

// election is the shortest time without a leader before a new one is sought.
func (c Config) election() time.Duration { return electionRTT * c.RTT }

// nodeHost is the configuration of the node's Raft host.
func (c Config) nodeHost() config.NodeHostConfig {
	h := fnv.New64a()
	h.Write([]byte(c.Cluster))
	logDB := config.GetTinyMemLogDBConfig()
	logDB.Shards = 1
	return config.NodeHostConfig{
		DeploymentID:        max(h.Sum64(), 2), // 0 and 1 mean any
		NodeHostDir:         c.Dir,
		RTTMillisecond:      uint64(c.RTT / time.Millisecond),
		RaftAddress:         c.RaftAddress,
		MutualTLS:           c.secure(),
		CAFile:              c.CAFile,
		CertFile:            c.CertFile,
		KeyFile:             c.KeyFile,
		MaxSendQueueSize:    maxQueue,
		MaxReceiveQueueSize: maxQueue,
		Expert: config.ExpertConfig{
			LogDB: logDB,
			// Exec must be a multiple of LogDB.Shards, for ever.
			Engine: config.EngineConfig{ExecShards: 1, CommitShards: 1, ApplyShards: 2, SnapshotShards: 4, CloseShards: 2},
		},
	}
}

// replica is the configuration of this node's replica of a shard.
func (c Config) replica(shard uint64) config.Config {
	return config.Config{
		ShardID:             shard,
		ReplicaID:           c.NodeID,
		CheckQuorum:         true,
		PreVote:             true,
		ElectionRTT:         electionRTT,
		HeartbeatRTT:        heartbeatRTT,
		OrderedConfigChange: true,
		SnapshotEntries:     0, // counts entries, not bytes; we ask for snapshots ourselves
		CompactionOverhead:  compactOverhead,
		MaxInMemLogSize:     maxInMemLog,
		WaitReady:           true,
	}
}
