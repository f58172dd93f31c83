//go:build !race

package sim

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// A bug is a planted mistake: one replacement in one file. The scenarios of the model must find it.
type bug struct {
	Name     string
	File     string // its path below the root
	Old, New string // Old occurs once in the file
}

// bugs are mistakes in the state of a flight, and mistakes of the chaos suite that one process can have.
var bugs = []bug{
	// The state of a flight.
	{
		Name: "epoch that is not compared", File: "entry.go",
		Old: "if known != nil && known.Epoch == it.Epoch && known.Failures",
		New: "if known != nil && known.Failures",
	},
	{
		Name: "invalidation that is not looked for", File: "landing.go",
		Old: "if r.outdated() {\n\t\t// Clients that read",
		New: "if swept {\n\t\t// Clients that read",
	},
	{
		Name: "slot that is not freed", File: "internal/slots/slots.go",
		Old: "\t\ts.held--\n",
		New: "\t\tif s.others.Len() == 0 {\n\t\t\ts.held--\n\t\t}\n",
	},
	{
		Name: "notice that is lost", File: "notice.go",
		Old: "e.voidKey(s, key, n.Epoch)",
		New: "e.near.Get(key)",
	},
	{
		Name: "waiter that is not woken", File: "confirm.go",
		Old: "\tr.setOffer(it)\n}\n\n// setOffer",
		New: "\ts := *r.state.Load()\n\ts.offered = it\n\tr.state.Store(&s)\n}\n\n// setOffer",
	},
	{
		Name: "stale offer after an invalidation", File: "witness.go",
		Old: "s.offered != nil && s.offered.Epoch <= epoch {",
		New: "false {",
	},
	{
		Name: "failure that is remembered for the wrong key", File: "loader.go",
		Old: "case batchErr != nil && batchErr.Errors[key] != nil:\n\t\terr = batchErr.Errors[key]",
		New: "case batchErr != nil && !found:\n\t\tfor _, failed := range batchErr.Errors {\n\t\t\terr = failed\n\t\t}",
	},
	{
		Name: "spool that is closed early", File: "internal/page/exchange.go",
		Old: "body.CloseWithError(cause)",
		New: "body.Close()",
	},
	{
		Name: "broken body that is closed as a whole one", File: "internal/page/exchange.go",
		Old: "s.body.CloseWithError(x.err)",
		New: "s.body.Close()",
	},
	{
		Name: "near entry that is moved back", File: "news.go",
		Old: "if made <= f.validSince {",
		New: "if made == f.validSince {",
	},
	{
		Name: "lease that is renewed after its loss", File: "lease.go",
		Old: "\t\t\ta.yield(driver.ErrLeaseLost)\n\t\t\te.OnError(a.key, &keyError{\"keeping the lease of\", a.key, err}) // may call Goexit\n\t\t\treturn\n",
		New: "\t\t\te.OnError(a.key, &keyError{\"keeping the lease of\", a.key, err})\n",
	},

	{
		Name: "refresh that takes the stored page", File: "internal/page/serve.go",
		Old: "t.directives = httpcache.RequestDirectives{NoCache: true}",
		New: "t.directives = httpcache.RequestDirectives{}",
	},

	// The chaos suite.
	{
		Name: "release by plain delete", File: "lockers/locallock/locallock.go",
		Old: "\tl.locker.purge()\n\tif l.locker.leases[l.key] != l {\n\t\treturn driver.ErrLeaseLost\n\t}\n\tl.locker.remove(l)",
		New: "\tl.locker.purge()\n\tif there := l.locker.leases[l.key]; there != nil {\n\t\tl.locker.remove(there)\n\t}",
	},
	{
		Name: "renew never", File: "lease.go",
		Old: "return lease.Renew(ctx, length)\n",
		New: "return ctx.Err()\n",
	},
	{
		Name: "expired lease believed too long", File: "lockers/locallock/locallock.go",
		Old: "end: now.Add(ttl), ended:",
		New: "end: now.Add(ttl.Truncate(time.Second)), ended:",
	},
	{
		Name: "no fencing", File: "network_test.go",
		Old: "\t\treturn store.Commit(ctx, key, arrived)\n",
		New: "\t\t_, arrived.Epoch, _ = store.Claim(ctx, key)\n\t\treturn store.Commit(ctx, key, arrived)\n",
	},
	{
		Name: "no re-read after winning", File: "looking.go",
		Old: "r.committed = 0\n\tif it == nil {",
		New: "r.committed = 0\n\tif it == nil || r.waiting.freed {",
	},
	{
		Name: "waiter that loads by itself", File: "standing.go",
		Old: "held, known := errors.AsType[*driver.HeldError](err)\n",
		New: "held, known := errors.AsType[*driver.HeldError](err)\n\tif known && r.waiting.holder != nil && e.clock.Now()-r.waiting.since > e.LeaseTTL {\n\t\treturn outcomeElected\n\t}\n",
	},
	{
		Name: "context error that is remembered", File: "finishing.go",
		Old: "remembered := !fault.Says(l.err, context.Canceled, context.DeadlineExceeded,",
		New: "remembered := !fault.Says(l.err, context.DeadlineExceeded,",
	},
	{
		Name: "near tier that asks no store", File: "near.go",
		Old: "return durations.Add(e.sweeps.Asked(now), e.NearTTL)",
		New: "return durations.Add(e.sweeps.Asked(now), e.TTL)",
	},
	{
		Name: "failure without its pause", File: "stale.go",
		Old: "l.RetryAt = durations.Add(now, items.BackOff(l.Failures, errorTTL, longest))",
		New: "l.RetryAt = now",
	},
	{
		Name: "hedge in every process", File: "hedge.go",
		Old: "if err != nil {\n\t\tif !errors.Is(err, driver.ErrHeld) {",
		New: "if err != nil && !errors.Is(err, driver.ErrHeld) {\n\t\tif err != nil {",
	},
	{
		Name: "loser with a served value", File: "commit.go",
		Old: "e.OnError(k.key, &keyError{\"committing\", k.key, err})\n\treturn commitFenced",
		New: "e.OnError(k.key, &keyError{\"committing\", k.key, err})\n\treturn commitTaken",
	},
}

// planted returns the file of the bug, below root, with the bug in it.
func (b bug) planted(root string) ([]byte, error) {
	text, err := os.ReadFile(filepath.Join(root, b.File))
	if err != nil {
		return nil, err
	}
	if n := strings.Count(string(text), b.Old); n != 1 {
		return nil, fmt.Errorf("bug %q: its text occurs %d times in %s, want once", b.Name, n, b.File)
	}
	return []byte(strings.Replace(string(text), b.Old, b.New, 1)), nil
}
