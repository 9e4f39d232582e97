# The suites of bourse. `make` lists them; .ci/run runs most of them, in the same form.
#
# The sizes below are those of CI. A long run is the same target with more:
#   make kill KILLS=20000
# Every suite prints its seed when it fails, and the command that replays it.

KILLS     ?= 1000    # a writing process is killed with SIGKILL and recovered, so often
EXT4      ?= 1000    # the power of a disk with ext4 is cut under a broker, so often; needs root
XFS       ?= 200     # the same with XFS
FILLS     ?= 60      # a disk is filled under a broker, and drained, so often; needs root
COMMANDS  ?= 1000000 # random commands to the queue machine, in step with a naive model
SEQUENCES ?= 20000   # random sequences of calls of the public API, against a naive model
RUNS      ?= 100000  # simulated runs of 500 commands each
RATE      ?= 200     # of them a second, at least
IMAGES    ?= 20000   # disks cut at a write or a sync under a broker, recovered and compared
SEEDS     ?= 12      # the same for the log alone: workloads that are cut at every call, some 20,000 disks
BACKLOG   ?= 1000000 # messages that wait in one queue; ten million need 12 GB of disk
OPENS     ?= 200000  # damaged directories that are opened and read
FAULTS    ?= 3000    # calls of the file system that are made to fail under the log, and as many under a broker
SOAK      ?= 3m      # how long the soak works; a long run: 2h
IDLE      ?= 20000   # times that each thing is done to a queue that is idle otherwise
FUZZTIME  ?= 70000x  # per fuzz target; also a time, such as 10m
EXECS     ?= 1000000 # executions of all fuzz targets together, at least
TARGETS   ?= 12      # fuzz targets, at least

# Which tests make up a suite. A pattern that finds no test is an error, not a pass.
KILL_TESTS  = ^TestKill
MODEL_TESTS = ^Test(Model|Machine)
CRASH_TESTS = ^TestCrash
FAULT_TESTS = ^Test(EveryCallFails|FaultEveryCall)$$
SIM_TESTS   = ^TestSim

.PHONY: help soak space test race invariants fuzz kill power full model
.PHONY: sim planted crash damage faults bench depth backlog poison unused floor backlog-floor idle
.PHONY: replicate
.PHONY: lint cover

help:             ## list the targets
	@sed -n 's/^\([a-z]*\):.*## */\1\t/p' Makefile | expand -t 14

test:             ## all tests, with small sizes: the ones to run before a commit
	go test ./...

race:             ## the same under the race detector
	go test -race -short -timeout 20m ./...

invariants:       ## the same with the costly assertions on
	go test -tags invariants -timeout 20m ./...

fuzz:             ## every fuzz target of the module, FUZZTIME each
	.ci/fuzz "$(strip $(FUZZTIME))" $(TARGETS) $(EXECS)

kill:             ## kill -9 in a loop: nothing confirmed is lost
	.ci/suite . "$(KILL_TESTS)" -kills $(KILLS) -v

power:            ## the power of real file systems is cut in a loop: nothing confirmed is lost
	.ci/suite . '^TestPower$$' -power.fs ext4 -power.cuts $(EXT4) -v
	.ci/suite . '^TestPower$$' -power.fs xfs -power.cuts $(XFS) -v

full:             ## real disks fill up, and have space again: nothing confirmed is lost, and all goes on by itself
	.ci/suite . '^TestFull$$' -full.fills $(FILLS) -v

model:            ## machine and public API in step with naive models
	.ci/suite . "$(MODEL_TESTS)" -commands $(COMMANDS) -sequences $(SEQUENCES)

sim:              ## queues among consumers, clocks and crashes that one seed decides, judged from outside
	.ci/suite . "$(SIM_TESTS)" -sim.seeds $(RUNS) -sim.floor $(RATE) -v

planted:          ## mistakes planted in the machine: the simulation finds each
	.ci/suite . '^TestSimPlanted$$' -sim.planted -v

crash:            ## power cuts at every write and sync, of the log and of the broker
	.ci/suite ./storage "$(CRASH_TESTS)" -crash.seeds $(SEEDS)
	.ci/suite . "$(CRASH_TESTS)" -images $(IMAGES)

damage:           ## damaged directories: each opens with what was written, or says which file is bad
	.ci/suite ./storage '^TestDamage' -damage.opens $(OPENS) -v

faults:           ## every call of the file system fails, in every way: nothing that was reported is lost
	.ci/suite ./storage "$(FAULT_TESTS)" -faults.points $(FAULTS) -v
	.ci/suite . "$(FAULT_TESTS)" -faults.points $(FAULTS) -v

bench:            ## the benchmarks; say machine, commit and options with every figure
	go test -run '^$$' -bench . -benchmem ./...

soak:             ## everything at once for SOAK: memory, goroutines, descriptors and directory return to where they were
	go test -count=1 -timeout 0 -run '^TestSoak$$' . -soak $(SOAK) -v

idle:             ## each kind of command alone, IDLE times: directory, memory, goroutines and descriptors return to where they were
	go test -count=1 -timeout 0 -run '^TestIdleCommands$$' . -idle.commands $(IDLE)

space:            ## the directory at rest, with files of the usual size and a million messages passing
	go test -count=1 -timeout 20m -run '^TestSpace$$' . -space.full -v

depth:            ## fail if a million waiting messages make an operation slower than a thousand do
	go test -run '^$$' -bench '^BenchmarkDepth$$' . -depth.most 1.2

backlog:          ## fail if BACKLOG messages of 1 KB that wait take too much memory, or an open that finds them too long
	.ci/suite . '^TestBacklog$$' -backlog $(BACKLOG) -v

poison:           ## fail if a job that always fails takes more than a place: the others keep 95 % of their rate
	.ci/suite . '^TestPoison'
	go test -run '^$$' -bench '^BenchmarkPoison$$' -benchtime 5s . -poison.least 0.95

unused:           ## fail if features that a queue does not use cost its messages anything
	.ci/suite . '^TestUnused'
	go test -run '^$$' -bench '^BenchmarkUnused$$' . -unused.most 1.05

floor:            ## fail if the broker is too far from the least that a durable queue must do
	go run ./bench/cmd/w -check

backlog-floor:    ## the same with BACKLOG messages waiting: fill, drain, and full cycles beside them
	go run ./bench/cmd/w -backlog $(BACKLOG) -rounds 3 -check

replicate:        ## vet and test the module of the cluster
	cd replicate && go vet ./... && go test -timeout 20m ./...

lint:             ## staticcheck and golangci-lint, at the versions of CI
	.ci/lint

cover:            ## how much of the pure files the tests reach
	.ci/cover
