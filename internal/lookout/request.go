package lookout

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/durations"
	"github.com/bellwether-go/bellwether/internal/fault"
	"github.com/bellwether-go/bellwether/internal/gate"
)

// A Reply is the store's word on a key. Its entry may wait: only Came tells when it had its Age.
type Reply struct {
	Entry driver.Entry
	Asked durations.Instant // before the store read the entry; for a notice, before the entry's commit
	Came  durations.Instant
	Err   error
}

// Silent reports whether the store had no answer.
func (r *Reply) Silent() bool { return errors.Is(r.Err, fault.ErrUnavailable) }

// A request is a request for several looks. Lookout.mu guards waiting.
type request struct {
	waiting int                // looks that are not over
	cancel  context.CancelFunc // called when waiting falls to 0: the request would hold a turn for no flight
}

// ask asks the store, in the request's turn, for all looks that take returns, and replies to each. The gate judges the
// request as for key. Without an answer ask repeats the request, tries times in all. The time without an answer costs
// each flight as much of its budget. ctx's end does not count, since the other flights need their replies. Once all
// flights have left, the request ends.
func (l *Lookout) ask(ctx context.Context, key string, tries int, patience time.Duration, take func() []*Look) {
	var looks []*Look
	begin := sync.OnceFunc(func() { looks = take() })
	silence, budget := fault.ErrUnavailable, gate.NewBudget(patience)
	defer func() { // also after a Goexit of the adapter
		begin()
		for _, p := range l.stillPresent(looks) {
			p.budget.Spend(patience - budget.Left())
			l.reply(p, &Reply{Err: silence})
		}
	}()
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(l.Open, cancel)()
	for ; ; tries-- {
		lost := patience - budget.Left()
		err := l.ReadMany(ctx, key, func() []string {
			begin()
			return l.send(looks, cancel)
		}, budget, func(i int, reply *Reply) {
			looks[i].budget.Spend(lost)
			l.reply(looks[i], reply)
		})
		begin() // without a turn there was no request
		looks, silence = l.stillPresent(looks), err
		if len(looks) == 0 || tries == 1 || budget.Left() <= 0 || !l.Reads.Retries() || ctx.Err() != nil {
			return
		}
		key = looks[0].key
		l.Silent(key, err)
	}
}

// reply ends a look with its reply. It ends first: Plan would take a look with a reply for one under way, and the flight
// would wait in vain for a second reply.
func (l *Lookout) reply(p *Look, r *Reply) {
	l.End(p)
	p.reply <- r
}

// send begins a request for looks, of which some may be over, and returns the names of their keys.
func (l *Lookout) send(looks []*Look, cancel context.CancelFunc) (names []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := &request{cancel: cancel}
	for _, p := range looks {
		names = append(names, l.Name(p.key))
		if p.request = r; !p.over {
			r.waiting++
		}
	}
	return names
}

func (l *Lookout) stillPresent(looks []*Look) []*Look {
	l.mu.Lock()
	defer l.mu.Unlock()
	return present(looks)
}

// inquired reports whether a key has an answer with the error err, and returns err. A panic of its methods becomes the
// error: the adapter may answer on a goroutine of its own.
func inquired(err error) (answer bool, _ error) {
	if failure := fault.Guard(func() error {
		fault.Inquire(err)
		answer = err == nil || fault.IsAnswer(err)
		return nil
	}); failure != nil {
		return false, failure
	}
	return answer, err
}

// ReadMany reads many keys in one request, which the gate judges as a request for key. It calls named for their names in
// the store when the request's turn has come, and take for each answer at once, one call at a time. The error is the
// reason why other keys have no answer. Each answer begins the time limit anew: a store that goes on answering has all
// the time.
func (l *Lookout) ReadMany(ctx context.Context, key string, named func() []string, budget *gate.Budget, take func(i int, reply *Reply)) error {
	var (
		mu       sync.Mutex // guards the fields below, until over
		silence  = errors.New("no answer for the key")
		names    []string
		answered = map[int]bool{}
		over     bool
		began    durations.Instant
		last     durations.Instant // the last answer
		heard    func()
	)
	each := func(i int, entry driver.Entry, err error) {
		answer, err := inquired(err)
		came := l.Now()
		mu.Lock()
		defer mu.Unlock()
		switch {
		case over || answered[i] || i < 0 || i >= len(names):
		case !answer:
			silence = err
		default:
			answered[i], last = true, max(last, came)
			heard()
			take(i, &Reply{entry, began, came, err})
		}
	}
	err := gate.AskInPieces(ctx, l.Reads, key, budget, func(ctx context.Context, piece func()) error {
		defer func() { // also after a panic: later answers of the adapter are ignored
			mu.Lock()
			defer mu.Unlock()
			over = true
		}()
		mu.Lock()
		names = named()
		heard, began = piece, l.Now()
		last = began
		mu.Unlock()
		if len(names) == 0 {
			return context.Canceled // the flights have left: neither an answer nor silence
		}
		l.Store.GetMany(ctx, names, each)
		mu.Lock()
		defer mu.Unlock()
		if len(answered) == 0 {
			return silence
		}
		return nil // a server of the store may be silent, but the store is up
	})
	if err == nil && len(answered) < len(names) {
		budget.Spend(l.Now() - last)
		err = fmt.Errorf("%w: %w", fault.ErrUnavailable, silence)
	}
	return err
}
