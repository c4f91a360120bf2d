package claims

import (
	"context"
	"errors"
	"time"

	"k8s.io/klog/v2"
)

// Retry says how long a call tries again by itself. The kubelet's own retry
// comes 60 to 90 seconds after a failed Prepare, and it gives a call 45 seconds.
type Retry struct {
	Budget time.Duration // for everything that may go away by itself
	Held   time.Duration // for a device that another claim still holds
	First  time.Duration // pause after the first failure; it doubles up to Max
	Max    time.Duration
}

// DefaultRetry leaves a third of the kubelet's deadline to what comes after. A
// force-deleted pod's devices are free again after about two seconds; waiting
// much longer would only hide the reason from the user.
var DefaultRetry = Retry{Budget: 30 * time.Second, Held: 10 * time.Second, First: 50 * time.Millisecond, Max: 2 * time.Second}

// do calls attempt until it succeeds, fails for good, or time is up. It returns
// the last error of attempt.
func (r Retry) do(ctx context.Context, attempt func() error) error {
	start, pause := time.Now(), r.First
	for {
		err := attempt()
		if err == nil || isPermanent(err) {
			return err
		}
		limit := r.Budget
		if held := (*heldError)(nil); errors.As(err, &held) {
			limit = r.Held
		}
		if time.Since(start)+pause > limit {
			return err
		}
		klog.FromContext(ctx).V(2).Info("Trying again", "cause", err, "pause", pause)
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return err
		case <-timer.C:
		}
		pause = min(2*pause, r.Max)
	}
}
