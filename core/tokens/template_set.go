package tokens

import (
	"fmt"

	"github.com/nikolalohinski/gonja/v2/exec"
	"github.com/nikolalohinski/gonja/v2/nodes"
	"github.com/nikolalohinski/gonja/v2/parser"
	lex "github.com/nikolalohinski/gonja/v2/tokens"
)

// assignment is {% set name = expression if condition else alternative %}.
type assignment struct {
	at                                 *lex.Token
	name                               string
	expression, condition, alternative nodes.Expression
}

func assignmentParser(args *parser.Parser) (*assignment, error) {
	a := &assignment{at: args.Current(), name: args.Match(lex.Name).Val}
	args.Match(lex.Assign)
	var err error
	if a.expression, err = args.ParseExpression(); err != nil {
		return nil, err
	}
	if a.condition, a.alternative, err = args.ParseCondition(); err != nil {
		return nil, err
	}
	if a.expression == nil || a.condition != nil && a.alternative == nil || !args.End() {
		return nil, fmt.Errorf("%w: malformed set", ErrTemplate)
	}
	return a, nil
}

func (a *assignment) Position() *lex.Token { return a.at }
func (a *assignment) String() string       { return "set" }

// Execute does what the library's own does.
func (a *assignment) Execute(r *exec.Renderer, _ *nodes.ControlStructureBlock) error {
	source := a.expression
	if a.condition != nil {
		condition := r.Eval(a.condition)
		if condition.IsError() {
			return condition
		}
		if condition.IsNil() || !condition.IsTrue() {
			source = a.alternative
		}
	}
	value := r.Eval(source)
	if value.IsError() {
		return value
	}
	r.Environment.Context.Set(a.name, value.Interface())
	return nil
}
