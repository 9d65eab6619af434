// Stands for the header of that name, of whose handle CUSP's sparse products name the type and nothing else.
#pragma once

typedef struct cublasContext* cublasHandle_t;
