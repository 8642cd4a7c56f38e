package scripted

// Options are what the engine was made from, defaults and the script's engine
// section applied. The caller must not change what they refer to.
func (e *Engine) Options() Options { return e.opts }
