package meter

// pauses says whether the module comes up for breath.
func (w *writer) pauses() bool {
	return w.o.Slice > 0 && w.m.Memory != nil && len(w.m.Funcs) > 0
}

// types is the type section's content, with the refiller's type behind those there.
func (w *writer) types(there []byte) []byte {
	n := len(w.m.Types)
	if !w.pauses() {
		return append(unsigned(nil, n), there...)
	}
	return append(append(unsigned(nil, n+1), there...), typeFunc, 0, 0)
}

// functions is the function section's content, with the refiller behind those there.
func (w *writer) functions(there []byte) []byte {
	n := len(w.m.Funcs)
	if !w.pauses() {
		return append(unsigned(nil, n), there...)
	}
	return unsigned(append(unsigned(nil, n+1), there...), len(w.m.Types))
}

// refiller is the body of the function that is called when the fuel is below zero.
// It stops if the reserve is empty, else it grows the memory by nothing, which goes
// through the host and lets its scheduler and garbage collector in, and moves a
// slice from the reserve to the fuel, until that is not below zero.
func (w *writer) refiller() []byte {
	const moved = 0 // a local
	b := []byte{1, 1, typeI64, opLoop, noResult}
	b = index(b, opGlobalGet, w.reserve)
	b = append(b, opI64Const, 0, opI64LeS, opIf, noResult, opUnreachable, opEnd)
	b = append(b, opI32Const, 0, opMemoryGrow, 0, opDrop)

	b = index(b, opGlobalGet, w.reserve)
	b = signed(append(b, opI64Const), w.o.Slice)
	b = index(b, opGlobalGet, w.reserve)
	b = signed(append(b, opI64Const), w.o.Slice)
	b = index(append(b, opI64LtS, opSelect), opLocalSet, moved)

	b = index(b, opGlobalGet, w.reserve)
	b = index(b, opLocalGet, moved)
	b = index(append(b, opI64Sub), opGlobalSet, w.reserve)

	b = index(b, opGlobalGet, w.fuel)
	b = index(b, opLocalGet, moved)
	b = index(append(b, opI64Add), opGlobalSet, w.fuel)

	b = index(b, opGlobalGet, w.fuel)
	return append(b, opI64Const, 0, opI64LtS, opBrIf, 0, opEnd, opEnd)
}
