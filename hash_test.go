package bourse

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// Goal: a consistent hash that shares keys out by weight, moves as few as possible, and
// never changes between releases. Method: properties over random sets of targets, counts
// over many keys, golden choices, and the logarithm against math.Log2.

func hashSet(weights ...int) hashTargets {
	var ts hashTargets
	for i, w := range weights {
		name := fmt.Sprintf("queue-%d", i)
		ts = ts.set(hashTarget{name: name, queue: queueID(i + 2), point: hashPoint(name, true), weight: uint64(w)})
	}
	return ts
}

func pickName(ts hashTargets, key string) string {
	if t := ts.pick(key); t != nil {
		return t.name
	}
	return ""
}

// TestHashGolden pins choices: changing them would move the keys of running systems.
func TestHashGolden(t *testing.T) {
	ts := hashSet(1, 2, 3, 1)
	got := ""
	for i := range 32 {
		got += pickName(ts, fmt.Sprintf("customer-%d", i))[len("queue-"):]
	}
	require.Equal(t, "22211220222102112232123111112130", got)
	require.Equal(t, uint64(0xf697f446e5cc8ebc), hashPoint("queue-0", true))
	require.NotEqual(t, hashPoint("queue-0", true), hashPoint("queue-0", false))
}

func TestHashNewTargetTakesOnlyForItself(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		weights := rapid.SliceOfN(rapid.IntRange(0, MaxWeight), 2, 8).Draw(t, "weights")
		all, fewer := hashSet(weights...), hashSet(weights[:len(weights)-1]...)
		last := fmt.Sprintf("queue-%d", len(weights)-1)
		key := rapid.String().Draw(t, "key")
		if got := pickName(all, key); got != last {
			require.Equal(t, pickName(fewer, key), got)
		}
	})
}

func TestHashMoreWeightOnlyAttracts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		weights := rapid.SliceOfN(rapid.IntRange(0, MaxWeight), 2, 8).Draw(t, "weights")
		i := rapid.IntRange(0, len(weights)-1).Draw(t, "which")
		before := hashSet(weights...)
		weights = slices.Clone(weights)
		weights[i] += rapid.IntRange(1, 50).Draw(t, "more")
		key := rapid.String().Draw(t, "key")
		if got := pickName(hashSet(weights...), key); got != fmt.Sprintf("queue-%d", i) {
			require.Equal(t, pickName(before, key), got)
		}
	})
}

func TestHashSharesByWeight(t *testing.T) {
	const keys = 40000
	for _, weights := range [][]int{{1, 1, 1, 1}, {1, 2, 3, 4}, {100, 1}, {1, 0, 1}, {7, 7, 7, 7, 7, 7, 7, 7, 7, 7}} {
		ts, sum := hashSet(weights...), 0
		for _, w := range weights {
			sum += w
		}
		counts := make([]int, len(weights))
		for k := range keys {
			counts[ts.pick(fmt.Sprintf("order.%d", k)).queue-2]++
		}
		for i, w := range weights {
			p := float64(w) / float64(sum)
			require.InDelta(t, p*keys, counts[i], 5*math.Sqrt(keys*p*(1-p))+1e-9, "weights %v, counts %v", weights, counts)
		}
	}
}

func TestHashMovesOneNth(t *testing.T) {
	const n, keys = 9, 20000
	weights := slices.Repeat([]int{1}, n+1)
	before, after := hashSet(weights[:n]...), hashSet(weights...)
	moved := 0
	for k := range keys {
		if key := fmt.Sprint("k", k); pickName(before, key) != pickName(after, key) {
			moved++
		}
	}
	require.InDelta(t, keys/(n+1), moved, 5*math.Sqrt(keys*0.1*0.9))
}

func TestHashIsIndependentOfOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 6).Draw(t, "n")
		var bindings, queues []Declaration
		for i := range n {
			name := fmt.Sprint("q", i)
			queues = append(queues, Queue{Name: name})
			bindings = append(bindings, Binding{Exchange: "e", Queue: name, Weight: rapid.IntRange(0, 100).Draw(t, "weight")})
		}
		mixed := rapid.Permutation(append(slices.Clone(queues), bindings...)).Draw(t, "order")
		hash := Exchange{Name: "e", Kind: ConsistentHash}
		one, _, err := newTopology(topologyLimits{}).declare(slices.Concat([]Declaration{hash}, queues, bindings))
		require.NoError(t, err)
		two, _, err := newTopology(topologyLimits{}).declare([]Declaration{Queue{Name: "zero"}, hash})
		require.NoError(t, err)
		two, _, err = two.declare(mixed)
		require.NoError(t, err)
		key := rapid.String().Draw(t, "key")
		a, err := one.route("e", key, nil, nil)
		require.NoError(t, err)
		b, err := two.route("e", key, nil, nil)
		require.NoError(t, err)
		require.Len(t, a, 1)
		require.Len(t, b, 1)
		qa, _ := one.queueByID(a[0])
		qb, _ := two.queueByID(b[0])
		require.Equal(t, qa.Name, qb.Name)
	})
}

func TestHashWeightsOfOneTargetAddUp(t *testing.T) {
	ds := []Declaration{Exchange{Name: "e", Kind: ConsistentHash}, Queue{Name: "a"}, Queue{Name: "b"},
		Binding{Exchange: "e", Queue: "b", Weight: 5}}
	one := declared(t, append(slices.Clone(ds), Binding{Exchange: "e", Queue: "a", Weight: 5})...)
	two := declared(t, append(slices.Clone(ds), Binding{Exchange: "e", Queue: "a", Weight: 2},
		Binding{Exchange: "e", Queue: "a", Weight: 3})...)
	for i := range 1000 {
		key := fmt.Sprint(i)
		require.Equal(t, routed(t, one, "e", key, nil), routed(t, two, "e", key, nil))
	}
	two, _, err := two.remove([]Declaration{Binding{Exchange: "e", Queue: "a", Weight: 2},
		Binding{Exchange: "e", Queue: "a", Weight: 3}})
	require.NoError(t, err)
	require.Equal(t, []string{"b"}, routed(t, two, "e", "k", nil))
}

func TestNegLog2(t *testing.T) {
	scale := math.Exp2(logBits)
	require.Zero(t, negLog2(math.MaxUint64))
	require.Equal(t, uint64(64)<<logBits, negLog2(0))
	require.Equal(t, uint64(1)<<logBits, negLog2(1<<63-1))
	rapid.Check(t, func(t *rapid.T) {
		h := rapid.Uint64Max(math.MaxUint64-1).Draw(t, "h") >> rapid.IntRange(0, 63).Draw(t, "shift")
		want := 64 - math.Log2(float64(h)+1)
		require.InDelta(t, want, float64(negLog2(h))/scale, 3e-6)
		if h > 0 {
			require.LessOrEqual(t, negLog2(h), negLog2(h-1), "not monotonic")
		}
	})
}

func TestNegLog2IsProportionalNearZero(t *testing.T) {
	// Large exchanges decide among draws near zero: their ratios must hold there.
	for _, d := range []uint64{1 << 20, 1 << 30, 1 << 40, 1 << 50, 1 << 54} {
		require.InEpsilon(t, 2.0, float64(negLog2(math.MaxUint64-2*d))/float64(negLog2(math.MaxUint64-d)), 0.005)
	}
}

func TestHashTellsAQueueFromAnExchangeOfItsName(t *testing.T) {
	ds := []Declaration{Exchange{Name: "e", Kind: ConsistentHash}, Exchange{Name: "x", Kind: Fanout}, Queue{Name: "x"},
		Queue{Name: "behind"},
		Binding{Exchange: "e", Queue: "x"}, Binding{Exchange: "e", Destination: "x"}, Binding{Exchange: "x", Queue: "behind"}}
	top, counts := declared(t, ds...), map[string]int{}
	for i := range 1000 {
		got := routed(t, top, "e", fmt.Sprint(i), nil)
		require.Len(t, got, 1)
		counts[got[0]]++
	}
	require.InDelta(t, 500, counts["x"], 80)
	require.InDelta(t, 500, counts["behind"], 80)
	top, _, err := top.remove([]Declaration{Binding{Exchange: "e", Destination: "x"}})
	require.NoError(t, err)
	for i := range 100 {
		require.Equal(t, []string{"x"}, routed(t, top, "e", fmt.Sprint(i), nil))
	}
}
