"""The demo: a real engine loses a prefix to pressure and gets it back, byte for byte, from OrbitKV.

`bootstrap` builds and makes the environment; `__main__` owns every process and folder of the run; `scenario` sends the
requests and judges them; `engines` is the one place that knows an engine; `manager` starts `orbitkv serve`; `damage`
spoils the stored bytes for the control; `table` prints.
"""
