"""Runs the stages of the tests: processes, counting and the closing report. The table of stages is tools/stages.py."""
