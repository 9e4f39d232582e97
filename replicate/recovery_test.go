package replicate

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/lni/dragonboat/v4"

	"github.com/boursemq/bourse"
	"github.com/boursemq/bourse/internal/enginetest"
)

// publish streams n numbers through whoever leads and returns when all are confirmed.
func publish(t *testing.T, s *stream, n int, logs []bourse.Log) {
	t.Helper()
	s.run(n, 200, func() bourse.Log { return leading(logs) }, func(int) {})
}

// Goal: a replica that missed so much that the log behind it is gone gets a snapshot from
// another node, with the kept commands, and ends in the same state.
func TestLaggingReplica(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 30*time.Millisecond)
	if err := c.start(); err != nil {
		t.Fatal(err)
	}
	logs, ms := c.openAll()
	publish(t, newStream(t), 300, logs)
	if err := c.nodes[2].Close(); err != nil {
		t.Fatal(err)
	}
	c.nodes[2] = nil
	missed := newStream(t)
	missed.tries = make([]*try, 1000) // other ids than before
	publish(t, missed, 1000, logs[:2])
	until(t, "the survivors agree", func() bool { return ms[0].Hash() == ms[1].Hash() })
	for _, n := range c.nodes[:2] {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		_, err := n.host.SyncRequestSnapshot(ctx, 1, dragonboat.SnapshotOption{OverrideCompactionOverhead: true})
		cancel()
		if err != nil {
			t.Fatal(err)
		}
		until(t, "the log is cut off", func() bool {
			r, err := n.host.GetLogReader(1)
			if err != nil {
				return false
			}
			first, _ := r.GetRange()
			return first > r.Snapshot().Index && first > 1
		})
	}
	if err := c.start(); err != nil {
		t.Fatal(err)
	}
	m := enginetest.NewMachine()
	l, err := c.nodes[2].Open(context.Background(), 1, m)
	if err != nil {
		t.Fatal(err)
	}
	until(t, "the lagging node has caught up", func() bool { return m.Hash() == ms[0].Hash() })
	if diff := m.Diff(ms[0]); diff != "" {
		t.Fatal(diff)
	}
	if restores, _ := m.Recovered(); restores == 0 {
		t.Error("it caught up without a snapshot")
	}
	bodies := m.Bodies()
	if len(bodies) < 100 {
		t.Fatalf("%d commands are kept", len(bodies))
	}
	for _, b := range bodies {
		here, err := l.Read(b.Ref, b.Size, nil)
		if err != nil {
			t.Fatal(err)
		}
		there, err := logs[0].Read(b.Ref, b.Size, nil)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(here, there) {
			t.Fatalf("command %d differs between the nodes", b.Ordinal)
		}
	}
}

// Goal: every replica takes snapshots by itself, by the bytes it has applied.
func TestSnapshotsByBytes(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 30*time.Millisecond)
	for i := range c.cfgs {
		c.cfgs[i].SnapshotBytes = 1 << 20
	}
	if err := c.start(); err != nil {
		t.Fatal(err)
	}
	logs, ms := c.openAll()
	publish(t, newStream(t), 4000, logs) // 2.2 MB
	for i, n := range c.nodes {
		until(t, "a snapshot on every node", func() bool {
			r, err := n.host.GetLogReader(1)
			return err == nil && r.Snapshot().Index > 0
		})
		if ms[i].Count() == 0 {
			t.Errorf("node %d applied nothing", i+1)
		}
	}
}

// Goal: nodes with certificates of one CA form a cluster; one with those of another is
// not heard.
func TestMutualTLS(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 30*time.Millisecond)
	ours, strange := newCA(t), newCA(t)
	for i := range c.cfgs {
		ca := ours
		if i == 2 {
			ca = strange
		}
		c.cfgs[i].InsecureLoopback = false
		c.cfgs[i].CAFile, c.cfgs[i].CertFile, c.cfgs[i].KeyFile = ca.issue(t)
	}
	if err := c.start(); err != nil {
		t.Fatal(err)
	}
	logs, ms := c.openAll()
	publish(t, newStream(t), 100, logs[:2])
	until(t, "the two agree", func() bool { return ms[0].Hash() == ms[1].Hash() })
	if n := ms[2].Count(); n != 0 {
		t.Errorf("the stranger has %d commands", n)
	}
}

// ca issues certificates for 127.0.0.1.
type ca struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

func certificate(t *testing.T, of *ca, isCA bool) (*x509.Certificate, *ecdsa.PrivateKey, []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: "bourse test"},
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().Add(time.Hour),
		IPAddresses:           []net.IP{net.IPv4(127, 0, 0, 1)},
		KeyUsage:              x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		BasicConstraintsValid: true,
		IsCA:                  isCA,
	}
	parent, signer := tmpl, key
	if of != nil {
		parent, signer = of.cert, of.key
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, parent, &key.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert, key, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func newCA(t *testing.T) *ca {
	cert, key, text := certificate(t, nil, true)
	return &ca{cert, key, text}
}

func (c *ca) issue(t *testing.T) (caFile, certFile, keyFile string) {
	t.Helper()
	_, key, cert := certificate(t, c, false)
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	write := func(name string, b []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	return write("ca.pem", c.pem), write("cert.pem", cert),
		write("key.pem", pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}))
}
