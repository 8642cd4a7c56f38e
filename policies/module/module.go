package module

// PageSize is the size of a page of memory in bytes.
const PageSize = 64 << 10

// Reserved begins the names of exports that are the host's own; a module that
// has one is refused.
const Reserved = "__ym_"

// Module is a valid module. All its slices are views of its bytes or belong to
// it, and are read only.
type Module struct {
	Bytes    []byte
	Sections []Section // as they stand, custom ones included
	Types    []FuncType
	Imports  []Import // functions; nothing else can be imported
	Funcs    []Func   // those with a body; their indices follow the imports'
	Tables   []Table
	Memory   *Memory // nil if there is none
	Globals  []Global
	Exports  []Export
	Custom   []Custom
	Grows    bool // some function may grow the memory; else it keeps its size and place

	elements []ValType // type of each element segment
	data     int       // data segments
}

// The sections that a rewriter needs to find, by their numbers in the binary
// format.
const (
	SectionCustom    byte = 0
	SectionType      byte = 1
	SectionImport    byte = 2
	SectionFunction  byte = 3
	SectionTable     byte = 4
	SectionMemory    byte = 5
	SectionGlobal    byte = 6
	SectionExport    byte = 7
	SectionStart     byte = 8
	SectionElement   byte = 9
	SectionCode      byte = 10
	SectionData      byte = 11
	SectionDataCount byte = 12
)

// Section is one section: its number and size stand at [Start, Body), its content
// at [Body, End).
type Section struct {
	ID               byte
	Start, Body, End int
}

// Import is a function that a module takes from its host.
type Import struct {
	Module, Name string
	Type         FuncType
}

// Func is a function with a body.
type Func struct {
	Type int // index into Types
	// Start is where its declarations of locals begin, Code its instructions; it
	// ends before End.
	Start, Code, End int
	Locals           int // parameters and locals
	Slots            int // words of 8 bytes that they and its operands need at most
}

// Table is a table of references.
type Table struct {
	Type ValType
	Min  uint32 // entries, for ever: nothing can grow it
}

// Memory is the memory, in pages of 64 KiB. Max is 65,536 if the module names none.
type Memory struct{ Min, Max uint32 }

// Global is a global variable.
type Global struct {
	Type    ValType
	Mutable bool
}

// Kind says what is exported.
type Kind byte

// The kinds of exports.
const (
	KindFunc   Kind = 0
	KindTable  Kind = 1
	KindMemory Kind = 2
	KindGlobal Kind = 3
)

// String is the kind's name.
func (k Kind) String() string {
	return [...]string{"function", "table", "memory", "global"}[k&3]
}

// Export is what a module shows under a name.
type Export struct {
	Name  string
	Kind  Kind
	Index int
}

// Custom is a custom section.
type Custom struct {
	Name string
	Data []byte
}

// Export finds an export by its name.
func (m *Module) Export(name string) (Export, bool) {
	for _, e := range m.Exports {
		if e.Name == name {
			return e, true
		}
	}
	return Export{}, false
}

// FuncType returns the type of the function of the given index, imports counted
// first.
func (m *Module) FuncType(index int) FuncType {
	if index < len(m.Imports) {
		return m.Imports[index].Type
	}
	return m.Types[m.Funcs[index-len(m.Imports)].Type]
}
