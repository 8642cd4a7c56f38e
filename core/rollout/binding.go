package rollout

import (
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Binding is what is bound for one kind of policy, and for one model or all. It
// is immutable.
type Binding struct {
	Kind  Kind
	Model string // empty: every model that has no binding of its own
	// Active decides. Where it is empty, the binding for all models does, and where
	// that is empty, too, what the node's configuration names.
	Active Stage
	Shadow Stage // is asked as well and only counted
	Canary Stage // decides for CanaryShare of the sessions in place of Active
	// CanaryShare is above 0 and up to 1 where there is a canary, else 0.
	CanaryShare float64
	Previous    []Stage // what was active before, newest first; an empty one among them is "none"
	Pinned      bool    // no verb but unpin moves it
	Index       uint64  // Raft index of the last change
}

// Uses reports whether a version is active, canary or shadow.
func (b *Binding) Uses(d Digest) bool {
	return b.Active.Uses(d) || b.Shadow.Uses(d) || b.Canary.Uses(d)
}

// Verb is a way to change a binding. Its numbers are for ever.
type Verb uint8

// The verbs.
const (
	// VerbShadow has Stage asked as well, and only counted; an empty one ends that.
	VerbShadow Verb = 1
	// VerbCanary has Stage decide for Share of the sessions. The same stage with
	// another share keeps who was in where the share grows. An empty stage takes the
	// canary that is there, and without one the shadow, which ends, since it decides now;
	// a share of 0 ends the canary.
	VerbCanary Verb = 2
	// VerbPromote makes Stage active; an empty one stands for the canary, and
	// without one for the shadow. It ends the canary, and the shadow if that is what
	// became active.
	VerbPromote Verb = 3
	// VerbRollback undoes the last step: it ends a canary, and where there is none
	// makes active what was before.
	VerbRollback Verb = 4
	VerbPin      Verb = 5 // lets no verb but unpin change the binding
	VerbUnpin    Verb = 6
	VerbClear    Verb = 7 // removes the binding and its history
)

var verbNames = [...]string{"", "shadow", "canary", "promote", "rollback", "pin", "unpin", "clear"}

// String is the verb as it is typed.
func (v Verb) String() string {
	if int(v) < len(verbNames) && v > 0 {
		return verbNames[v]
	}
	return fmt.Sprintf("verb %d", uint8(v))
}

// ParseVerb reads a verb. Errors wrap ErrInvalid.
func ParseVerb(s string) (Verb, error) {
	if i := slices.Index(verbNames[1:], s); i >= 0 {
		return Verb(i + 1), nil
	}
	return 0, fmt.Errorf("%w: %.80q is none of %v", ErrInvalid, s, verbNames[1:])
}

// Change is one verb on one binding.
type Change struct {
	Kind  Kind
	Model string
	Verb  Verb
	Stage Stage   // of shadow, canary and promote
	Share float64 // of canary, 0 to 1
	// IfIndex makes it a compare-and-swap: it fails unless the binding has that
	// index, 0 meaning that there is none.
	IfIndex *uint64
}

// Validate reports what is wrong with a change, whatever the table. Errors wrap
// ErrInvalid.
func (c *Change) Validate() error {
	switch {
	case !c.Kind.Known():
		return fmt.Errorf("%w: kind %.80q is none of %v", ErrInvalid, c.Kind, Kinds())
	case len(c.Model) > MaxModel:
		return fmt.Errorf("%w: the model's name is longer than %d bytes", ErrInvalid, MaxModel)
	case !utf8.ValidString(c.Model) || strings.ContainsFunc(c.Model, unicode.IsControl):
		return fmt.Errorf("%w: the model's name %.80q has control characters, or is no text", ErrInvalid, c.Model)
	case c.Model != "" && (c.Kind == Autoscaler || c.Kind == Observer):
		return fmt.Errorf("%w: a policy of kind %s sees all models; bind it without --model", ErrInvalid, c.Kind)
	case c.Verb < VerbShadow || c.Verb > VerbClear:
		return fmt.Errorf("%w: %v", ErrInvalid, c.Verb)
	case !c.Stage.Empty() && c.Verb > VerbPromote:
		return fmt.Errorf("%w: %v takes no policy", ErrInvalid, c.Verb)
	case c.Verb != VerbCanary && c.Share != 0:
		return fmt.Errorf("%w: %v takes no share", ErrInvalid, c.Verb)
	case !(c.Share >= 0 && c.Share <= 1):
		return fmt.Errorf("%w: a share of %v; it is from 0 to 1", ErrInvalid, c.Share)
	case c.Verb == VerbCanary && (c.Kind == Autoscaler || c.Kind == Observer):
		return fmt.Errorf("%w: a policy of kind %s decides for no session, so it has no canary; try shadow", ErrInvalid, c.Kind)
	case c.Verb == VerbShadow && c.Kind == Observer:
		return fmt.Errorf("%w: an observer decides nothing, so there is nothing to compare; promote it", ErrInvalid)
	}
	return c.Stage.validate(c.Kind)
}

// on is the binding after the change. The change is valid, and its parts exist.
func (c *Change) on(b Binding) (Binding, error) {
	if b.Pinned && c.Verb != VerbUnpin && c.Verb != VerbPin {
		return b, fmt.Errorf("%w: unpin %s first", ErrPinned, b.name())
	}
	switch c.Verb {
	case VerbShadow:
		b.Shadow = c.Stage
	case VerbCanary:
		return c.canary(b)
	case VerbPromote:
		return c.promote(b)
	case VerbRollback:
		return rollback(b)
	case VerbPin:
		b.Pinned = true
	case VerbUnpin:
		b.Pinned = false
	case VerbClear: // the table removes it
	}
	return b, nil
}

func (c *Change) canary(b Binding) (Binding, error) {
	if c.Share == 0 {
		b.Canary, b.CanaryShare = Stage{}, 0
		return b, nil
	}
	stage := c.Stage
	for _, candidate := range []Stage{b.Canary, b.Shadow} {
		if stage.Empty() {
			stage = candidate
		}
	}
	if stage.Empty() {
		return b, fmt.Errorf("%w: %s has neither a canary nor a shadow; name the policy", ErrNothing, b.name())
	}
	b.Canary, b.CanaryShare = stage, c.Share
	return b.decided(stage), nil
}

// decided is the binding without its shadow, if that is a stage that decides now.
func (b Binding) decided(stage Stage) Binding {
	if b.Shadow.Equal(stage) {
		b.Shadow = Stage{}
	}
	return b
}

func (c *Change) promote(b Binding) (Binding, error) {
	stage := c.Stage
	for _, candidate := range []Stage{b.Canary, b.Shadow} {
		if stage.Empty() {
			stage = candidate
		}
	}
	if stage.Empty() {
		return b, fmt.Errorf("%w: %s has neither a canary nor a shadow to promote; name the policy", ErrNothing, b.name())
	}
	if !stage.Equal(b.Active) {
		b.Previous = append([]Stage{b.Active}, b.Previous[:min(len(b.Previous), MaxPrevious-1)]...)
		b.Active = stage
	}
	b.Canary, b.CanaryShare = Stage{}, 0
	return b.decided(stage), nil
}

func rollback(b Binding) (Binding, error) {
	if !b.Canary.Empty() {
		b.Canary, b.CanaryShare = Stage{}, 0
		return b, nil
	}
	if len(b.Previous) == 0 {
		return b, fmt.Errorf("%w: nothing was active before for %s; promote what should be", ErrNothing, b.name())
	}
	b.Active, b.Previous = b.Previous[0], slices.Clone(b.Previous[1:])
	return b, nil
}

// without is the binding without a version: where that was active, and is not to be
// kept so, with the newest stage before that does not use it.
func (b Binding) without(d Digest, keep bool) Binding {
	if b.Canary.Uses(d) {
		b.Canary, b.CanaryShare = Stage{}, 0
	}
	if b.Shadow.Uses(d) {
		b.Shadow = Stage{}
	}
	b.Previous = slices.DeleteFunc(slices.Clone(b.Previous), func(s Stage) bool { return s.Uses(d) })
	if b.Active.Uses(d) && !keep {
		b.Active = Stage{}
		if len(b.Previous) > 0 {
			b.Active, b.Previous = b.Previous[0], b.Previous[1:]
		}
	}
	return b
}

func (b *Binding) equal(o *Binding) bool {
	return b.Kind == o.Kind && b.Model == o.Model && b.Active.Equal(o.Active) && b.Shadow.Equal(o.Shadow) &&
		b.Canary.Equal(o.Canary) && b.CanaryShare == o.CanaryShare && b.Pinned == o.Pinned &&
		slices.EqualFunc(b.Previous, o.Previous, Stage.Equal)
}

// name is how a sentence calls the binding.
func (b *Binding) name() string {
	if b.Model == "" {
		return "the " + string(b.Kind) + " of all models"
	}
	return fmt.Sprintf("the %s of model %s", b.Kind, b.Model)
}
