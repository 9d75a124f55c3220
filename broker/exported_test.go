package broker

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestOutsidersCanNameWhatTheyAreGiven: no exported field, function or method of the packages that programs use has a type of an internal package, which nobody outside can name or
// look up.
func TestOutsidersCanNameWhatTheyAreGiven(t *testing.T) {
	for _, dir := range []string{".", "../namesrv", "../client"} {
		names, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil || len(names) == 0 {
			t.Fatalf("no files in %s, %v", dir, err)
		}
		for _, name := range names {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			for _, what := range internalTypes(file) {
				t.Errorf("%s: %s", name, what)
			}
		}
	}
}

// TestDefaultsAreThoseInTheComments: what stands at a field of Config is what NewConfig gives, and each default stands there.
func TestDefaultsAreThoseInTheComments(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "config.go", nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	said := map[string]string{}
	ast.Inspect(file, func(n ast.Node) bool {
		ts, ok := n.(*ast.TypeSpec)
		if !ok {
			return true
		}
		if st, ok := ts.Type.(*ast.StructType); ok && ts.Name.Name == "Config" {
			for _, f := range st.Fields.List {
				if _, text, ok := strings.Cut(f.Comment.Text(), "default "); ok {
					text, _, _ = strings.Cut(strings.TrimSpace(text), " (")
					said[f.Names[0].Name] = text
				}
			}
		}
		return false
	})
	cfg := reflect.ValueOf(NewConfig())
	checked := 0
	for i := range cfg.NumField() {
		name, v := cfg.Type().Field(i).Name, cfg.Field(i)
		if !v.CanInterface() {
			continue
		}
		text := said[name]
		var want string
		switch x := v.Interface().(type) {
		case string:
			want = strconv.Quote(x)
		case time.Duration:
			want = shortest(x)
		case bool:
			want = strconv.FormatBool(x)
		case int:
			want = thousands(x)
		case int32:
			if want = thousands(int(x)); name == "Permission" {
				want = map[bool]string{true: "both"}[x == PermRead|PermWrite]
			}
		default:
			continue
		}
		switch {
		case v.IsZero(): // it follows from something else, or there is none
			if text == "true" || strings.HasPrefix(text, `"`) {
				t.Errorf("%s: default %s, but it is not set", name, text)
			}
		case text != want:
			t.Errorf("%s: default %q in the comment, but %s", name, text, want)
		default:
			checked++
		}
	}
	if checked < 25 {
		t.Errorf("only %d defaults were compared", checked)
	}
}

func shortest(d time.Duration) string {
	switch {
	case d%(24*time.Hour) == 0:
		return fmt.Sprintf("%d days", d/(24*time.Hour))
	case d%time.Second == 0:
		return fmt.Sprintf("%d s", d/time.Second)
	}
	return fmt.Sprintf("%d ms", d/time.Millisecond)
}

func thousands(n int) string {
	switch {
	case n%(1<<20) == 0:
		return fmt.Sprintf("%d MiB", n>>20)
	case n >= 20_000 && n%1000 == 0:
		return fmt.Sprintf("%d,000", n/1000)
	}
	return strconv.Itoa(n)
}

// internalTypes lists the types of internal packages in what a file exports.
func internalTypes(file *ast.File) (found []string) {
	internal := map[string]bool{}
	for _, i := range file.Imports {
		path := strings.Trim(i.Path.Value, `"`)
		if strings.Contains(path, "/internal/") {
			internal[path[strings.LastIndexByte(path, '/')+1:]] = true
		}
	}
	look := func(of string, n ast.Node) {
		ast.Inspect(n, func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectorExpr); ok {
				if x, ok := s.X.(*ast.Ident); ok && internal[x.Name] {
					found = append(found, of+" has a type "+x.Name+"."+s.Sel.Name)
				}
			}
			return true
		})
	}
	for _, d := range file.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Name.IsExported() && (d.Recv == nil || receiver(d).IsExported()) {
				look(d.Name.Name, d.Type)
			}
		case *ast.GenDecl:
			for _, s := range d.Specs {
				ts, ok := s.(*ast.TypeSpec)
				if !ok || !ts.Name.IsExported() {
					continue
				}
				st, ok := ts.Type.(*ast.StructType)
				if !ok {
					look(ts.Name.Name, ts.Type)
					continue
				}
				for _, f := range st.Fields.List {
					for _, name := range f.Names {
						if name.IsExported() {
							look(ts.Name.Name+"."+name.Name, f.Type)
						}
					}
				}
			}
		}
	}
	return found
}

func receiver(d *ast.FuncDecl) *ast.Ident {
	t := d.Recv.List[0].Type
	if p, ok := t.(*ast.StarExpr); ok {
		t = p.X
	}
	return t.(*ast.Ident)
}
