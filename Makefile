# Everything runs with the Go toolchain and a C compiler (for the race detector) alone; interop wants a JDK and Maven too.
GO ?= go
FUZZTIME ?= 5s
SOAK ?= 1h
MQTESTS ?= .
ACCEPTANCE ?= NothingIsLost|SendsGoOn|Transactions|Delayed|ComeBack|MixedBrokers|MovesFrom
RACETESTS ?= RegistersHold|UnconfirmedRead|SurvivesKills|UpKeeps|DescriptorsRunOut
MQRACETESTS ?= TestStockClientsSeeTheOriginal|NothingIsLost|SendsGoOn|Transactions|Delayed|ComeBack

modules := . bench tools interop/mq
# Tests that start no other program. The rest, with the Java originals and stock RocketMQ clients, is `make interop interop-mq`.
packages = $(shell $(GO) list ./... | grep -v '^dledger/interop')
# The limit of tests with other programs, which take an hour or two with INTEROP_LONG=1.
patience = $(if $(INTEROP_LONG),3h,15m)
staticcheck = $(GO) tool -modfile=$(CURDIR)/tools/go.mod staticcheck

.PHONY: check format vet staticcheck tidy race sim build test latency interop interop-mq acceptance interop-race planted bench fuzz soak cover clean

# check is what CI asks of every change, but for the tests with other programs.
check: format vet staticcheck tidy race sim

format:
	@files=$$(gofmt -l .); [ -z "$$files" ] || { echo "not in gofmt's form:" $$files; exit 1; }

vet:
	$(GO) vet ./...
	$(GO) vet -tags planted ./internal/...
	cd bench && $(GO) vet ./...
	cd interop/mq && $(GO) vet ./...

staticcheck:
	$(staticcheck) ./...
	cd bench && $(staticcheck) ./...
	cd interop/mq && $(staticcheck) ./...

# tidy finds go.mod and go.sum files that `go mod tidy` would change, and shows the change.
tidy:
	@for m in $(modules); do (cd $$m && $(GO) mod tidy -diff) || { echo "go.mod or go.sum of module $$m is not tidy"; exit 1; }; done

# race includes the table of imports and the check of the documents. A simulated life is one goroutine: nothing to find there.
race:
	$(GO) test -race -short $(filter-out dledger/internal/sim,$(packages))
	cd bench && $(GO) test -short ./...

sim:
	$(GO) test -short ./internal/sim

build:
	$(GO) build ./...
	$(GO) build -o dledger ./cmd/dledger
	cd bench && $(GO) build -o /dev/null ./...

test:
	$(GO) test ./...

# latency holds a good client's p99 while a port is attacked. It wants the machine for itself. ATTACKS, a regular expression, says by what.
ATTACKS = .
latency:
	INTEROP=all INTEROP_LATENCY='$(ATTACKS)' .ci/figures $(GO) test -count=1 -timeout $(patience) -parallel 1 -run HostileNetwork ./interop

interop:
	INTEROP=all .ci/figures $(GO) test -count=1 -timeout $(patience) ./interop/...

# interop-mq is stock RocketMQ clients and tools against our name server and brokers.
interop-mq:
	cd interop/mq && ../../.ci/figures $(GO) test -count=1 -timeout $(patience) -run '$(MQTESTS)' ./...

# acceptance is what brokers promise under faults, in the numbers that were asked for, and prints what was counted: twenty kills, orderly ends,
# hand-overs and partitions, 1,000 transactions, groups of ours and Java brokers, the move from the one to the other, and five kills of the original beside ours. Half an hour and
# more.
acceptance:
	@out=$$(mktemp) && trap 'rm -f "$$out" "$$out.failed"' EXIT && \
	{ cd interop/mq && CI=true INTEROP_LONG=1 INTEROP_ORIGINAL=1 $(GO) test -count=1 -v -timeout 3h -run '$(ACCEPTANCE)' . || touch "$$out.failed"; } 2>&1 | tee "$$out"; \
	echo; grep -E '^ *--- |counts: |^(ok|FAIL)' "$$out"; [ ! -e "$$out.failed" ]

# interop-race is chaos, kills and stock clients with nodes of ours that run with the race detector: a race in one of them fails the test.
interop-race:
	DLEDGER_RACE=1 $(GO) test -count=1 -timeout $(patience) -run '$(RACETESTS)' ./interop
	[ -z '$(MQRACETESTS)' ] || { cd interop/mq && DLEDGER_RACE=1 $(GO) test -count=1 -timeout $(patience) -run '$(MQRACETESTS)' .; }

# planted breaks one rule of the product at a time and asks whether the simulation notices. Some minutes.
planted:
	$(GO) test -count=1 -timeout 60m -tags planted -run Planted ./internal/sim

bench:
	cd bench && $(GO) run . -quick
	cd interop/mq && $(GO) run ./compare -quick

# fuzz runs every fuzz target for FUZZTIME. What it finds is kept under testdata/fuzz and is from then on a case of the ordinary tests.
fuzz:
	@set -e; for p in $(packages); do \
		for f in $$($(GO) test -run '^$$' -list '^Fuzz' $$p | grep '^Fuzz' || true); do \
			echo "$$p $$f"; $(GO) test -run '^$$' -fuzz "^$$f\$$" -fuzztime $(FUZZTIME) $$p; \
		done; \
	done

# soak runs all that draws something else each time, over and over until SOAK is over, and prints what it counted.
soak:
	SOAK=$(SOAK) .ci/soak

cover:
	$(GO) test -short -coverpkg=./... -coverprofile=cover.out $(packages)
	$(GO) tool cover -func=cover.out | tail -1

clean:
	rm -f dledger cover.out
