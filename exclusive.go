package bourse

import (
	"fmt"

	"github.com/boursemq/bourse/internal/wire"
)

// sessionID is one life of one Broker. Declarations and what undoes them carry that of who proposes them, since a log may have
// proposers on several nodes. 0 is none.
type sessionID uint64

// owned is an exclusive queue and the session that declared it.
type owned struct {
	id    queueID
	owner sessionID
}

func byOwned(a, b owned) bool { return a.id < b.id }

// owner is the session that the queue belongs to; 0 if that is none.
func (t *topology) owner(id queueID) sessionID {
	o, _ := t.owners.Get(owned{id: id})
	return o.owner
}

// lockedFor reports, as ErrLocked, that the queue belongs to another session.
func (t *topology) lockedFor(session sessionID, def queueDef) error {
	if owner := t.owner(def.id); owner != 0 && owner != session {
		return fmt.Errorf("queue %q: %w", def.Name, ErrLocked)
	}
	return nil
}

// anyLockedFor is lockedFor for all that ds names: the queues, and those that bindings lead to.
func (t *topology) anyLockedFor(session sessionID, ds []Declaration) error {
	if t.owners.Len() == 0 {
		return nil
	}
	for _, d := range ds {
		name := ""
		switch d := d.(type) {
		case Queue:
			name = d.Name
		case Binding:
			name = d.Queue
		}
		if def, ok := t.queue(name); ok {
			if err := t.lockedFor(session, def); err != nil {
				return err
			}
		}
	}
	return nil
}

// own gives the exclusive queues among created to session. next is not shared yet if there are any.
func (t *topology) own(session sessionID, created []queueDef) {
	for _, def := range created {
		if def.Exclusive {
			t.owners.ReplaceOrInsert(owned{def.id, session})
		}
	}
}

// appendOwner appends the owner of an exclusive queue, and nothing for another.
func (t *topology) appendOwner(dst []byte, def queueDef) []byte {
	if def.Exclusive {
		dst = wire.AppendUint64(dst, uint64(t.owner(def.id)))
	}
	return dst
}

func (t *topology) decodeOwner(r *wire.Reader, def *queueDef) {
	if !def.Exclusive {
		return
	}
	if owner := sessionID(r.Uint64()); owner != 0 {
		t.owners.ReplaceOrInsert(owned{def.id, owner})
	}
}
