package dledger_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// A document that is no longer true is a bug. This much of it a machine can tell: every relative link leads somewhere, and every
// file, test and Go name that stands between backquotes exists.
func TestDocumentsNameWhatExists(t *testing.T) {
	names := declared(t)
	walk(t, ".md", func(name string) {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range link.FindAllStringSubmatch(string(text), -1) {
			target, _, _ := strings.Cut(m[1], "#")
			if target == "" || strings.Contains(target, ":") {
				continue
			}
			if _, err := os.Stat(filepath.Join(filepath.Dir(name), target)); err != nil {
				t.Errorf("%s links to %s, which is not there", name, target)
			}
		}
		for _, m := range quoted.FindAllStringSubmatch(string(text), -1) {
			word := strings.TrimSuffix(m[1], "()")
			switch pkg, _, _ := strings.Cut(word, "."); {
			case file.MatchString(word):
				if _, err := os.Stat(word); err != nil {
					t.Errorf("%s names the file %s, which is not there", name, word)
				}
			case testName.MatchString(word) && !names[word]:
				t.Errorf("%s names %s, which is no test", name, word)
			case goName.MatchString(word) && !strings.HasSuffix(word, ".go") && names[pkg] && !names[word]:
				t.Errorf("%s names %s, which is not declared", name, word)
			}
		}
	})
}

// TestReferencesCanBeFollowed: comments and documents name what a reader of the repository has: headings of docs, decisions by their file, classes
// of the original; not numbers of a page that is elsewhere.
func TestReferencesCanBeFollowed(t *testing.T) {
	for _, suffix := range []string{".go", ".md", ".java", ".txt"} {
		each(t, suffix, func(string) bool { return false }, func(name string) {
			if name == "docs_test.go" {
				return
			}
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range elsewhere.FindAllString(paper.ReplaceAllString(string(text), ""), -1) {
				t.Errorf("%s names %q, which is not in the repository", name, m)
			}
			for _, m := range decision.FindAllString(string(text), -1) {
				if _, err := os.Stat(m); err != nil {
					t.Errorf("%s names %s, which is not there", name, m)
				}
			}
			for _, m := range heading.FindAllStringSubmatch(string(text), -1) {
				page, err := os.ReadFile(m[1])
				for _, h := range strings.Split(strings.Trim(m[2], `"`), `" and "`) {
					if err != nil || !regexp.MustCompile(`(?m)^#+ `+regexp.QuoteMeta(h)+`$`).Match(page) {
						t.Errorf("%s names %q of %s, which has no such heading", name, h, m[1])
					}
				}
			}
		})
	}
}

var (
	elsewhere = regexp.MustCompile(`(?i)protocol page|\bdecision D[0-9]+|\bsections? [0-9]+\.[0-9]+`)
	paper     = regexp.MustCompile(`(?i)(Raft|Revisited),? section [0-9.]+`) // papers that anybody can read
	decision  = regexp.MustCompile(`docs/adr/[0-9]{4}[\w.-]*\w`)
	heading   = regexp.MustCompile(`(docs/\w+\.md), ("[^"\n]+"(?: and "[^"\n]+")*)`)
)

var (
	link     = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	quoted   = regexp.MustCompile("`([^`\n]+)`")
	file     = regexp.MustCompile(`^[\w.-]+/[\w./-]+\.(go|md|txt|json|mod|java)$`)
	testName = regexp.MustCompile(`^(Test|Fuzz|Benchmark|Example)[A-Z]\w*$`)
	goName   = regexp.MustCompile(`^[a-z]\w*(\.[A-Za-z]\w*){1,2}$`)
)

// declared gives what documents may name: each package, what it declares as "package.Name" and "package.Type.Member", and each
// test, fuzz target, benchmark and example by its name alone.
func declared(t *testing.T) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	walk(t, ".go", func(name string) {
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		pkg := f.Name.Name
		names[pkg] = pkg != "main"
		for _, d := range f.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if strings.HasSuffix(name, "_test.go") {
					names[d.Name.Name] = true
				}
				names[pkg+"."+receiver(d)+d.Name.Name] = true
			case *ast.GenDecl:
				for _, s := range d.Specs {
					declare(names, pkg, s)
				}
			}
		}
	})
	return names
}

// receiver gives the receiver's type with a dot behind it; "" for a function.
func receiver(d *ast.FuncDecl) string {
	if d.Recv == nil {
		return ""
	}
	typ := d.Recv.List[0].Type
	if p, ok := typ.(*ast.StarExpr); ok {
		typ = p.X
	}
	if g, ok := typ.(*ast.IndexExpr); ok {
		typ = g.X
	}
	if id, ok := typ.(*ast.Ident); ok {
		return id.Name + "."
	}
	return ""
}

func declare(names map[string]bool, pkg string, spec ast.Spec) {
	switch s := spec.(type) {
	case *ast.ValueSpec:
		for _, n := range s.Names {
			names[pkg+"."+n.Name] = true
		}
	case *ast.TypeSpec:
		names[pkg+"."+s.Name.Name] = true
		var members *ast.FieldList
		switch typ := s.Type.(type) {
		case *ast.StructType:
			members = typ.Fields
		case *ast.InterfaceType:
			members = typ.Methods
		default:
			return
		}
		for _, m := range members.List {
			for _, n := range m.Names {
				names[pkg+"."+s.Name.Name+"."+n.Name] = true
			}
		}
	}
}

// walk calls f for each file of the project, but for test data, whose name ends like this.
func walk(t *testing.T, suffix string, f func(name string)) {
	t.Helper()
	each(t, suffix, func(dir string) bool { return filepath.Base(dir) == "testdata" }, f)
}

// each is walk with the directories that are left out beside those with a dot before their name.
func each(t *testing.T, suffix string, skip func(dir string) bool, f func(name string)) {
	t.Helper()
	err := filepath.WalkDir(".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && name != "." && (d.Name()[0] == '.' || skip(name)):
			return filepath.SkipDir
		case !d.IsDir() && strings.HasSuffix(name, suffix):
			f(name)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
