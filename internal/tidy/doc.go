// Package tidy owns the rules of the tree: its tests read every file of the checkout and fail on what breaks one.
//
// Each rule is a pure function from the text of files to a list of breaches, so that it is itself tested on planted
// faults (rules_test.go) before it judges the tree. The package has no code of its own, imports nothing of the module,
// and must never be imported. New files count before they are committed; ignored ones never do.
package tidy
