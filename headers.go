package bourse

import (
	"bytes"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/boursemq/bourse/internal/invariant"
	"github.com/boursemq/bourse/internal/wire"
)

// This file holds what headers are made of: the closed set of value types, their encoding,
// and the comparison that a HeadersMatch exchange makes.

// validateHeaders checks the headers of a message: at most MaxHeaders, MaxHeaderBytes
// encoded, names of 1 to MaxNameBytes bytes as any name, and values of these types: string,
// bool, every integer type but uintptr, float32, float64, time.Time and []byte. The error
// names field and header, and is the same whenever the headers are.
func validateHeaders(field string, h map[string]any) error {
	if err := validateHeaderSet(field, h, false); err != nil {
		return err
	}
	return nil
}

// validateCriteria checks the criteria of a binding: as headers, and nil asks for presence.
func validateCriteria(field string, h map[string]any) *InvalidError {
	if err := validateHeaderSet(field, h, true); err != nil {
		return err
	}
	if v, ok := h[matchHeader]; ok {
		if _, ok := parseMatchMode(v); !ok {
			return invalid(field, "%s is %v (%T), want all, any, all-with-x or any-with-x", matchHeader, v, v)
		}
	}
	return nil
}

func validateHeaderSet(field string, h map[string]any, criteria bool) *InvalidError {
	if len(h) == 0 {
		return nil
	}
	if len(h) > MaxHeaders {
		return invalid(field, "has %d headers, the limit is %d", len(h), MaxHeaders)
	}
	size := 1 + wire.UvarintLen(uint64(len(h)))
	var buf [MaxHeaders]string
	for _, name := range sortedNames(buf[:0], h) {
		if err := validateName(field, name); err != nil {
			return invalid(field, "the name of header %q %s", name, err.Reason)
		}
		v := h[name]
		n, ok := headerValueSize(v)
		switch {
		case !ok:
			return invalid(field, "header %q is a %T, which is no header type", name, v)
		case v == nil && !criteria:
			return invalid(field, "header %q is nil", name)
		}
		size += wire.UvarintLen(uint64(len(name))) + len(name) + n
	}
	if size > MaxHeaderBytes {
		return invalid(field, "takes %d bytes encoded, the limit is %d", size, MaxHeaderBytes)
	}
	return nil
}

// sortedNames appends the names of h to buf in byte order: the only way that the order of
// a Go map leaves this file.
func sortedNames(buf []string, h map[string]any) []string {
	buf = slices.AppendSeq(buf, maps.Keys(h))
	slices.Sort(buf)
	return buf
}

// The encoding of headers:
//
//	nothing                                          if there are none
//	version 1 | count | count times: name, tag, value    else, names in strictly rising byte order
//
// Equal headers have equal encodings. Numbers lose their Go type: integers come back as
// int64, or uint64 above its range; floats as float64. Times keep the instant and lose
// zone and monotonic reading: they come back in UTC.
const headersVersion = 1

// Tags of header values. They are a format: never renumber.
const (
	tagNil    = 0 // criteria only; no value
	tagFalse  = 1 // no value
	tagTrue   = 2 // no value
	tagInt    = 3 // varint
	tagUint   = 4 // uvarint, above the range of int64
	tagFloat  = 5 // eight bytes
	tagString = 6 // length and bytes
	tagBytes  = 7 // length and bytes
	tagTime   = 8 // varint Unix seconds, uvarint nanoseconds
)

// headerValue is a value of a header in the one form in which equal values are equal, field by
// field: numbers of any type that are integers become tagInt or tagUint, and only the
// rest is tagFloat. So 1 equals 1.0, and 1<<53+1 does not equal any float.
type headerValue struct {
	tag  byte
	nsec int32
	bits uint64 // of the number, or seconds of a time
	text string
	raw  []byte
}

// encodeForm is plainForm without the step from float to integer: an encoded float stays one.
func encodeForm(v any) (headerValue, bool) {
	switch v := v.(type) {
	case nil:
		return headerValue{tag: tagNil}, true
	case bool:
		if v {
			return headerValue{tag: tagTrue}, true
		}
		return headerValue{tag: tagFalse}, true
	case string:
		return headerValue{tag: tagString, text: v}, true
	case int:
		return intForm(int64(v)), true
	case int8:
		return intForm(int64(v)), true
	case int16:
		return intForm(int64(v)), true
	case int32:
		return intForm(int64(v)), true
	case int64:
		return intForm(v), true
	case uint:
		return uintForm(uint64(v)), true
	case uint8:
		return uintForm(uint64(v)), true
	case uint16:
		return uintForm(uint64(v)), true
	case uint32:
		return uintForm(uint64(v)), true
	case uint64:
		return uintForm(v), true
	case float32:
		return headerValue{tag: tagFloat, bits: math.Float64bits(float64(v))}, true
	case float64:
		return headerValue{tag: tagFloat, bits: math.Float64bits(v)}, true
	case []byte:
		return headerValue{tag: tagBytes, raw: v}, true
	case time.Time:
		return headerValue{tag: tagTime, bits: uint64(v.Unix()), nsec: int32(v.Nanosecond())}, true
	}
	return headerValue{}, false
}

func intForm(v int64) headerValue { return headerValue{tag: tagInt, bits: uint64(v)} }

func uintForm(v uint64) headerValue {
	if v <= math.MaxInt64 {
		return headerValue{tag: tagInt, bits: v}
	}
	return headerValue{tag: tagUint, bits: v}
}

// plainForm returns v in the form for comparison. False means that v is of no header type.
func plainForm(v any) (headerValue, bool) {
	f, ok := encodeForm(v)
	if !ok || f.tag != tagFloat {
		return f, ok
	}
	// Both bounds are powers of two and exact; inside them the conversion of a whole
	// number is exact too, so nothing is compared after rounding.
	switch x := math.Float64frombits(f.bits); {
	case x != math.Trunc(x): // has a fraction, or is no number
	case x >= -1<<63 && x < 1<<63:
		return intForm(int64(x)), true
	case x >= 1<<63 && x < 1<<64:
		return uintForm(uint64(x)), true
	}
	return f, true
}

// equal compares two values in plain form. Not-a-number equals nothing, itself included.
func (a headerValue) equal(b headerValue) bool {
	if a.tag != b.tag {
		return false
	}
	if a.tag == tagFloat {
		return math.Float64frombits(a.bits) == math.Float64frombits(b.bits)
	}
	return a.bits == b.bits && a.nsec == b.nsec && a.text == b.text && bytes.Equal(a.raw, b.raw)
}

// headerValueSize is the number of bytes that v takes encoded, with its tag.
func headerValueSize(v any) (int, bool) {
	f, ok := encodeForm(v)
	switch f.tag {
	case tagInt:
		return 1 + wire.UvarintLen(f.bits<<1^uint64(int64(f.bits)>>63)), ok
	case tagUint:
		return 1 + wire.UvarintLen(f.bits), ok
	case tagFloat:
		return 9, ok
	case tagString:
		return 1 + wire.UvarintLen(uint64(len(f.text))) + len(f.text), ok
	case tagBytes:
		return 1 + wire.UvarintLen(uint64(len(f.raw))) + len(f.raw), ok
	case tagTime:
		return 1 + wire.UvarintLen(f.bits<<1^uint64(int64(f.bits)>>63)) + wire.UvarintLen(uint64(f.nsec)), ok
	}
	return 1, ok
}

// appendHeaders appends h, which has passed validateHeaders or validateCriteria.
func appendHeaders(dst []byte, h map[string]any) []byte {
	if len(h) == 0 {
		return dst
	}
	dst = append(dst, headersVersion)
	dst = wire.AppendUvarint(dst, uint64(len(h)))
	var buf [MaxHeaders]string
	for _, name := range sortedNames(buf[:0], h) {
		f, ok := encodeForm(h[name])
		invariant.Check(ok, "a header to encode is of no header type")
		dst = append(wire.AppendString(dst, name), f.tag)
		switch f.tag {
		case tagInt:
			dst = wire.AppendVarint(dst, int64(f.bits))
		case tagUint:
			dst = wire.AppendUvarint(dst, f.bits)
		case tagFloat:
			dst = wire.AppendUint64(dst, f.bits)
		case tagString:
			dst = wire.AppendString(dst, f.text)
		case tagBytes:
			dst = wire.AppendBytes(dst, f.raw)
		case tagTime:
			dst = wire.AppendVarint(dst, int64(f.bits))
			dst = wire.AppendUvarint(dst, uint64(f.nsec))
		}
	}
	return dst
}

// decodeHeaders returns the headers that appendHeaders wrote as the whole of b, with copies
// of what b holds. The result is nil if there are none. What decodes is within the limits of
// headers, or of criteria if a value is nil; all else is wire.ErrMalformed.
func decodeHeaders(b []byte) (map[string]any, error) {
	if len(b) == 0 {
		return nil, nil
	}
	if len(b) > MaxHeaderBytes {
		return nil, fmt.Errorf("headers of %d bytes: %w", len(b), wire.ErrMalformed)
	}
	r := wire.NewReader(b)
	version, n := r.Byte(), r.Count(3)
	if version != headersVersion || n == 0 || n > MaxHeaders {
		return nil, fmt.Errorf("headers: %w", wire.ErrMalformed)
	}
	h, last := make(map[string]any, n), ""
	for range n {
		name := r.String()
		if name <= last || validateName("", name) != nil {
			r.Fail()
		}
		h[name] = decodeHeaderValue(&r)
		last = name
	}
	if r.Done() != nil {
		return nil, fmt.Errorf("headers: %w", wire.ErrMalformed)
	}
	return h, nil
}

func decodeHeaderValue(r *wire.Reader) any {
	switch r.Byte() {
	case tagNil:
		return nil
	case tagFalse:
		return false
	case tagTrue:
		return true
	case tagInt:
		return r.Varint()
	case tagUint:
		v := r.Uvarint()
		if v <= math.MaxInt64 {
			r.Fail()
		}
		return v
	case tagFloat:
		return r.Float64()
	case tagString:
		return r.String()
	case tagBytes:
		return append([]byte{}, r.Bytes()...)
	case tagTime:
		sec, nsec := r.Varint(), r.Uvarint()
		if nsec >= uint64(time.Second) {
			r.Fail()
			return nil
		}
		return time.Unix(sec, int64(nsec)).UTC()
	}
	r.Fail()
	return nil
}

// matchHeader names the criterion that is not one: it holds the mode.
const matchHeader = "x-match"

// matchMode says how the criteria of a binding combine.
type matchMode struct {
	any   bool // one criterion is enough; else all must hold
	withX bool // criteria whose name starts with "x-" count too
}

func parseMatchMode(v any) (matchMode, bool) {
	switch v {
	case "all":
		return matchMode{}, true
	case "any":
		return matchMode{any: true}, true
	case "all-with-x":
		return matchMode{withX: true}, true
	case "any-with-x":
		return matchMode{any: true, withX: true}, true
	}
	return matchMode{}, false
}

// criteria are the Headers of a binding, made ready to match.
type criteria struct {
	any  bool
	list []criterion // by name; only those that count in the mode
}

type criterion struct {
	name  string
	value headerValue // tagNil: the header must be present, with whatever value
}

// newCriteria makes h, which has passed validateCriteria, ready to match.
func newCriteria(h map[string]any) criteria {
	var mode matchMode // a missing mode is all
	if v, ok := h[matchHeader]; ok {
		mode, ok = parseMatchMode(v)
		invariant.Check(ok, "criteria with an unknown mode")
	}
	c := criteria{any: mode.any}
	for _, name := range sortedNames(nil, h) {
		if name == matchHeader || !mode.withX && strings.HasPrefix(name, "x-") {
			continue
		}
		f, ok := plainForm(h[name])
		invariant.Check(ok, "a criterion is of no header type")
		f.raw = bytes.Clone(f.raw)
		c.list = append(c.list, criterion{name: name, value: f})
	}
	return c
}

// match reports whether h fulfils the criteria. No criteria at all are fulfilled by everything
// if all must hold, and by nothing if one must.
func (c *criteria) match(h map[string]any) bool {
	for i := range c.list {
		if c.list[i].match(h) == c.any {
			return c.any
		}
	}
	return !c.any
}

func (c *criterion) match(h map[string]any) bool {
	v, ok := h[c.name]
	if !ok || c.value.tag == tagNil {
		return ok
	}
	f, ok := plainForm(v)
	return ok && f.equal(c.value)
}

// criteriaChunk is the most bindings in one chunk of a criteriaList.
const criteriaChunk = 256

// criteriaList is the bindings of a HeadersMatch exchange, each of which has to be tried for
// every message: chunks in the order of compareBinding, none empty. It is never changed, only
// replaced, which copies one chunk and the list of chunks. (The tree of bindings would do
// but for its iterator, a function that would move the walk to the heap.)
type criteriaList [][]*binding

// chunkOf returns the index of the chunk that holds b or where b belongs, in a list that is
// not empty.
func (l criteriaList) chunkOf(b *binding) int {
	i, found := slices.BinarySearchFunc(l, b, func(chunk []*binding, b *binding) int { return compareBinding(chunk[0], b) })
	if found {
		return i
	}
	return max(i-1, 0)
}

// with returns the list with b, which it does not hold.
func (l criteriaList) with(b *binding) criteriaList {
	if len(l) == 0 {
		return criteriaList{{b}}
	}
	c := l.chunkOf(b)
	i, _ := slices.BinarySearchFunc(l[c], b, compareBinding)
	chunk := slices.Insert(slices.Clone(l[c]), i, b)
	next := slices.Clone(l)
	next[c] = chunk
	if half := len(chunk) / 2; len(chunk) > criteriaChunk {
		next[c] = slices.Clone(chunk[:half])
		next = slices.Insert(next, c+1, slices.Clone(chunk[half:]))
	}
	return next
}

// without returns the list without b, which it holds.
func (l criteriaList) without(b *binding) criteriaList {
	c := l.chunkOf(b)
	i, found := slices.BinarySearchFunc(l[c], b, compareBinding)
	invariant.Check(found, "a binding to remove is not among the criteria")
	next := slices.Clone(l)
	if len(l[c]) == 1 {
		return slices.Delete(next, c, c+1)
	}
	next[c] = slices.Delete(slices.Clone(l[c]), i, i+1)
	return next
}
