module github.com/bellwether-go/bellwether

go 1.26.0
